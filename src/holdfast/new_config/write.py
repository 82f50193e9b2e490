"""Write a config with the reason behind each line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

_ORDER = ("task", "model", "data", "adapter", "table", "network", "train", "preference", "save", "evaluate", "run")
_WIDTH = 118  # of a line with its reason


def as_yaml(tree: Mapping[str, Any], reasons: Mapping[str, str], head: list[str]) -> str:
    """Return the text of a config. tree: dotted keys; reasons: by key; head: lines of comment before it."""
    lines = [
        f"# {part}" for line in head for part in ([_plain(line)] if line.startswith("To do:") else _folded(line))
    ]  # commands stay whole
    sections: dict[str, list[str]] = {}
    for path in tree:
        section, _, _ = path.partition(".")
        sections.setdefault(section, []).append(path)
    for section in sorted(sections, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER)):
        paths = sections[section]
        if paths == [section]:
            lines.append(_line(section, tree[section], reasons.get(section, ""), ""))
            continue
        lines.append(f"{section}:")
        nested: set[str] = set()
        for path in paths:
            _, _, name = path.partition(".")
            inner, _, last = name.partition(".")
            if last and inner not in nested:
                lines.append(f"  {inner}:")
                nested.add(inner)
            lines.append(_line(last or inner, tree[path], reasons.get(path, ""), "    " if last else "  "))
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, reason: str, indent: str) -> str:
    text = f"{indent}{name}: {_inline(value)}"
    if not reason:
        return text
    if len(text) + len(reason) + 4 <= _WIDTH:
        return f"{text}  # {_plain(reason)}"
    above = [f"{indent}# {part}" for part in _folded(reason)]
    return "\n".join([*above, text])


def _inline(value: Any) -> str:
    if isinstance(value, float) and value == int(value) and 1 <= abs(value) < 1e6:
        return str(int(value))
    if isinstance(value, float):
        return f"{value:g}" if "e" not in f"{value:g}" else f"{value:.6e}".replace("000000e", "0e") if value else "0"
    return yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True).removesuffix("...\n").strip()


def _plain(text: str) -> str:
    return " ".join(str(text).split())


def _folded(text: str) -> list[str]:
    lines, line = [], ""
    for word in _plain(text).split(" "):
        if line and len(line) + len(word) + 1 > _WIDTH - 4:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line]
