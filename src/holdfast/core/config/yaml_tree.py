"""Read YAML once, as values and as nodes, which know their lines; find keys that stand twice. Knows no file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same values and lines, ten times as fast
Keys = tuple[str | int, ...]


def root_of(text: str, loader: Any = LOADER) -> tuple[yaml.Node | None, Callable[[], Any]]:
    """The root node of a YAML text, None for an empty one, and what makes values of it. Both raise yaml.YAMLError."""
    reader = loader(text)
    try:
        root = reader.get_single_node()
    finally:
        reader.dispose()
    return root, lambda: None if root is None else reader.construct_document(root)


def mappings(node: yaml.Node | None, keys: Keys = ()) -> Iterator[tuple[Keys, yaml.MappingNode]]:
    """Every mapping in a node, outer ones first, and the keys that lead to it."""
    if isinstance(node, yaml.MappingNode):
        yield keys, node
        for key, value in node.value:
            yield from mappings(value, (*keys, key.value if isinstance(key, yaml.ScalarNode) else "?"))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from mappings(value, (*keys, number))


def repeated(mapping: yaml.MappingNode) -> Iterator[tuple[str, int, int]]:
    """Keys that stand in it again, with both lines: YAML's readers take the last one without a word."""
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                yield key.value, lines[key.value], line
            lines[key.value] = line
