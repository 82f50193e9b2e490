"""Read YAML once, as values and as nodes, which know their lines; find keys that stand twice. Knows no file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

_PLACE = re.compile(r"line (\d+), column (\d+)")
_SOURCE = re.compile(r' in "<\w+ string>",')  # PyYAML's name for a text that is no file
_DEEPEST = 64  # mappings and lists inside each other
_LONGEST_NUMBER = 100  # characters; no number of ours needs more, and making one of thousands takes long
_IN_OTHER_BASES = re.compile(r"[-+]?(0[0-7_]+|.*:.*)")  # 010 and 1:30, which YAML 1.1 takes for 8 and 90: texts here
_MOST_VALUES = 20_000  # keys and values together
Keys = tuple[str | int, ...]


def _number(loader: Any, node: yaml.ScalarNode) -> Any:
    if len(node.value) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, f"a number of {len(node.value):,} characters", node.start_mark)
    if _IN_OTHER_BASES.fullmatch(node.value):
        return node.value
    return yaml.constructor.SafeConstructor.construct_yaml_int(loader, node)


def _decimal(loader: Any, node: yaml.ScalarNode) -> Any:
    return node.value if ":" in node.value else yaml.constructor.SafeConstructor.construct_yaml_float(loader, node)


class TooManyValues(yaml.composer.ComposerError):
    """A text of more values than a config has."""


class _Loader(yaml.SafeLoader):
    """PyYAML's own: its errors show the line they are about."""


class LOADER(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same values and lines, ten times as fast."""


for _loader in (_Loader, LOADER):
    _loader.add_constructor("tag:yaml.org,2002:int", _number)
    _loader.add_constructor("tag:yaml.org,2002:float", _decimal)


def root_of(text: str, slowly: bool = False) -> tuple[yaml.Node | None, Callable[[], Any]]:
    """Return the root node of a YAML text, None for an empty one, and a function that makes values of it.

    slowly: by PyYAML's own parser. Both raise yaml.YAMLError, also for what stands too deep, for numbers beyond all use and
    for an alias of a list or mapping: a few of them inside each other stand for more values than there is memory.
    """
    loader = _Loader if slowly else LOADER
    try:
        _refuse_many(text)
    except TooManyValues:
        raise
    except yaml.YAMLError:
        pass
    _refuse_bombs(text, loader)
    reader = loader(text)
    try:
        root = reader.get_single_node()
    finally:
        reader.dispose()
    return root, lambda: None if root is None else _values(reader, root)


def value_of(text: str) -> Any:
    """Parse the value of a YAML text. Raises yaml.YAMLError as `root_of` does."""
    return root_of(text)[1]()


def in_one_line(error: Exception) -> str:
    """Describe the error of a YAML text in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is not None and "'\\t'" in str(getattr(error, "problem", "")):
        return f"line {mark.line + 1} begins with a tab, and YAML allows none there: indent with spaces"
    opened, at, what = (str(getattr(error, name, "")) for name in ("context_mark", "context", "problem"))
    if "quoted scalar" in at and "end of stream" in what and (place := _PLACE.search(opened)):
        return f"the quote opened in line {place[1]}, column {place[2]} is not closed"
    misplaced = "mapping values are not allowed" in what or "found '<block mapping start>'" in what
    if misplaced and mark is not None and mark.buffer and (told := _at_colon(mark)):
        return told
    if "found '<block mapping start>'" in what and mark is not None and mark.buffer:
        line = mark.buffer.replace("\0", "").splitlines()[mark.line]
        return f"line {mark.line + 1} is indented otherwise than those it stands among: {line.strip()[:60]}"
    return " ".join(_SOURCE.sub(" in", str(error)).split())


def _at_colon(mark: Any) -> str:
    """Say what a colon too many or a missing space made of the line before it; empty where neither is seen."""
    lines = mark.buffer.replace("\0", "").splitlines()[: mark.line + 1]
    if re.match(r"[\s-]*[\w.]+:\s", lines[-1][: mark.column]):
        return f"line {mark.line + 1} has a second colon in its value: write the value in quotes"
    above = [number for number, line in enumerate(lines[:-1], 1) if line.strip() and not line.lstrip().startswith("#")]
    joined = re.match(r"[\s-]*([\w.]+):\S", lines[above[-1] - 1]) if above else None
    return f"line {above[-1]}: a space is missing behind `{joined[1]}:`" if joined else ""


def _values(reader: Any, root: yaml.Node) -> Any:
    try:
        return reader.construct_document(root)
    except (ValueError, OverflowError, RecursionError) as error:  # a date such as 2026-99-99; PyYAML lets them through
        raise yaml.YAMLError(str(error)) from None


def _refuse_many(text: str) -> None:
    """Raise TooManyValues, before the slow parser goes through them; what else is wrong is its to say."""
    count = depth = 0
    for event in yaml.parse(text, LOADER):
        count += isinstance(event, yaml.ScalarEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:  # it takes seconds for thousands of brackets; what comes next stops at these, too
            return
        if count > _MOST_VALUES:
            raise TooManyValues(None, None, f"more than {_MOST_VALUES:,} keys and values; many files are named by a folder or a pattern")


def _refuse_bombs(text: str, loader: Any) -> None:
    depth = 0
    plain: dict[str, bool] = {}
    for event in yaml.parse(text, loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        name: str = getattr(event, "anchor", None) or ""
        where: Any = event.start_mark
        if depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"more than {_DEEPEST} levels inside each other", where)
        if isinstance(event, yaml.AliasEvent):
            if not plain.get(name, True):
                raise yaml.composer.ComposerError(None, None, f"*{name} repeats a list or mapping: write it out", where)
        elif name:
            plain[name] = isinstance(event, yaml.ScalarEvent)


def mappings(node: yaml.Node | None, keys: Keys = ()) -> Iterator[tuple[Keys, yaml.MappingNode]]:
    """Yield every mapping in a node, outer ones first, and the keys that lead to it."""
    if isinstance(node, yaml.MappingNode):
        yield keys, node
        for key, value in node.value:
            yield from mappings(value, (*keys, key.value if isinstance(key, yaml.ScalarNode) else "?"))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from mappings(value, (*keys, number))


def repeated(mapping: yaml.MappingNode) -> Iterator[tuple[str, int, int]]:
    """Yield (key, first line, line) of each key given again: YAML's readers silently take the last one."""
    lines: dict[str, int] = {}
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                yield key.value, lines[key.value], line
            lines[key.value] = line
