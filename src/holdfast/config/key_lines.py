"""Say what each key of a config takes, as its line of docs/reference/config.md does; from the config's JSON schema alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.config.config import Config

PAGE = "docs/reference/config.md"
_PLURAL = {"string": "names", "integer": "numbers", "number": "numbers"}


def key_line(place: Sequence[Any]) -> str:
    """Return where the page tells the key that `place` leads to, and what it says there; a section's or the page's own for no key."""
    schema = Config.model_json_schema()
    part, keys = schema, []
    for name in place:
        inner = schema["$defs"][section_in(part)] if section_in(part) else part
        if name not in inner.get("properties", {}):
            break
        part = inner["properties"][name]
        keys.append(str(name))
    heading = f"{PAGE}#{keys[0]}" if len(keys) > 1 or section_in(part) else PAGE
    if not keys or section_in(part):
        return f"{heading} lists {'its keys' if keys else 'every key'}"
    default = f"{default_of(part).strip('`')} when not given" if "default" in part and part["default"] not in (None, []) else ""
    said = "; ".join(one for one in (type_of(part).replace("`", ""), default, part.get("description", "")) if one)
    return f"{heading} says of {'.'.join(keys)}: {said}"


def section_in(part: dict[str, Any]) -> str:
    """Return the name of the section a key holds; empty where it holds a value."""
    for one in [part, *part.get("allOf", []), *part.get("anyOf", [])]:
        if "$ref" in one:
            return str(one["$ref"].rpartition("/")[2])
    return ""


def default_of(part: dict[str, Any]) -> str:
    """Return the default of a key as the page shows it."""
    if "default" not in part:
        return "`[]`" if part.get("type") == "array" else "`{}`"
    value = part["default"]
    return "not set" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def type_of(part: dict[str, Any]) -> str:
    """Return in words which values a key takes."""
    if "enum" in part or "const" in part:
        return ", ".join(f"`{one}`" for one in part.get("enum", [part.get("const")]))
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(type_of(one) for one in part["anyOf"] if one.get("type") != "null"))
    kind = part.get("type", "value")
    if kind == "array":
        items = part.get("items", {})
        return "list of faults" if "$ref" in items else f"list of {_PLURAL.get(items.get('type'), type_of(items))}"
    if kind == "object":
        return "mapping"
    words = {"string": "text", "boolean": "`true`, `false`"}.get(kind, kind)
    low, high = part.get("minimum", part.get("exclusiveMinimum")), part.get("maximum", part.get("exclusiveMaximum"))
    above, below = "over" if "exclusiveMinimum" in part else "from", "below" if "exclusiveMaximum" in part else "to"
    limits = [f"{above} {_figure(low)}" if low is not None else "", f"{below} {_figure(high)}" if high is not None else ""]
    return " ".join([words, *(one for one in limits if one)])


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"
