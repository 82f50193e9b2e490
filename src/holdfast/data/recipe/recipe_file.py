"""One YAML file of a recipe: its values, each with its place, so that a mistake is told by file, key and line. Knows no templates."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from holdfast.base.safe_open import read_small
from holdfast.config.yaml_tree import in_one_line, mappings, repeated, root_of

_NAME = re.compile(r"[a-zA-Z_]+[0-9]*(?:\.[a-z_]+)?")


class YamlPlace:
    """Where in a recipe file something stands: the file and the keys that lead there."""

    def __init__(self, file: Path, root: yaml.Node | None, keys: tuple[str | int, ...] = ()) -> None:
        self.file, self._root, self.keys = file, root, keys

    def __truediv__(self, key: str | int) -> YamlPlace:
        return YamlPlace(self.file, self._root, (*self.keys, key))

    def __str__(self) -> str:
        return self.file.name + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)

    def wrong(self, what: str) -> ValueError:
        """Return the error that says `what` is wrong here, with the line."""
        return ValueError(f"{self}: {what} (line {self._line()} of {self.file})")

    def _line(self) -> int:
        """Return the line of the innermost key that is there, counted from 1."""
        node, line = self._root, 1
        for key in self.keys:
            if isinstance(node, yaml.MappingNode):
                found = next((pair for pair in node.value if pair[0].value == str(key)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                node = node.value[key]
                line = node.start_mark.line + 1
            else:
                break
        return line


def read_file(file: Path) -> tuple[dict[str, Any], YamlPlace]:
    """Read the values of a recipe file and the place of its root. Raises ValueError for invalid YAML, and for a key given twice."""
    try:
        root, values = root_of(read_small(file).decode("utf-8"))
        place = YamlPlace(file, root)
        if root is None:
            raise place.wrong("the file is empty")
        _refuse_double_keys(root, place)
        return mapping(values(), place), place
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not a YAML text: {in_one_line(error)}") from error


def _refuse_double_keys(root: yaml.Node, place: YamlPlace) -> None:
    """Refuse a key given twice, of which YAML would drop the first silently. Raises ValueError."""
    for keys, inside in mappings(root):
        here = YamlPlace(place.file, root, keys)
        for key, _ in inside.value:
            if not isinstance(key, yaml.ScalarNode):
                raise here.wrong(f"a key must be a text (line {key.start_mark.line + 1})")
        for name, first, again in repeated(inside):
            raise here.wrong(f"duplicate key {name}, in lines {first} and {again}")


def mapping(value: Any, place: YamlPlace) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise place.wrong("must be a mapping of names to values")
    return {str(key): item for key, item in value.items()}


def texts(value: Any, place: YamlPlace) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise place.wrong("must be a list of texts")
    return tuple(value)


def whole(value: Any, least: int, place: YamlPlace) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise place.wrong(f"must be a whole number of at least {least}, it is {value!r}")
    return value


def share(value: Any, place: YamlPlace) -> float:
    """Parse a share written as 25% or 0.25."""
    text = str(value)
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if isinstance(value, bool) or not 0 <= found <= 1:
        raise place.wrong(f"must be a share such as 25% or 0.25, it is {value!r}")
    return found


def refuse_unknown(body: Mapping[str, Any], known: Iterable[str], place: YamlPlace) -> None:
    for key in body:
        if key not in known:
            raise (place / key).wrong(f"unknown key, known: {', '.join(sorted(known))}")


def fields(text: str, place: YamlPlace) -> tuple[str, ...]:
    """List the slots of a pattern in order, each once."""
    try:
        names = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError as error:
        raise place.wrong(f"{error} (write {{{{ and }}}} for braces that are no slot)") from error
    for name in names:
        if not _NAME.fullmatch(name):
            raise place.wrong(f"{{{name}}} is no slot name (write {{{{ and }}}} for braces that are no slot)")
    return tuple(dict.fromkeys(names))


def refuse_fields(text: str, known: set[str], place: YamlPlace) -> None:
    for name in fields(text, place):
        if name not in known:
            raise place.wrong(f"unknown slot {{{name}}}, known: {', '.join(sorted(known))}")
