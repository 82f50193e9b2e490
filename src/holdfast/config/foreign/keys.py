"""What is known of a config of another trainer: its keys, and what became of each. Reads no file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Fate = Literal["carried", "changed", "not_carried"]
SAME = "the same there and here"
_INDEX = re.compile(r"\[\d+\]")


class ComputedValue(NamedTuple):
    """A value that a script computes when it runs: its source."""

    source: str


class Contents(NamedTuple):
    """The value of a section: its keys stand beside it."""

    keys: int


@dataclass(frozen=True)
class Key:
    """One key of theirs. theirs: its path in their file; where: the place, for people."""

    theirs: str
    value: Any
    where: str = ""

    @property
    def pattern(self) -> str:
        """Its path without the numbers of list items."""
        return _INDEX.sub("[]", self.theirs)


@dataclass(frozen=True)
class ForeignConfig:
    """What a file of another trainer says. program: whose it is; kind: config, script or command line; label: its trainer class or task."""

    program: str
    kind: Literal["config", "script", "command line"]
    keys: tuple[Key, ...]
    trains: str = ""


class KeyOutcome(NamedTuple):
    """What becomes of a key: its fate, why, the key of ours it belongs to, and what it sets."""

    fate: Fate
    why: str
    ours: str | None = None
    sets: dict[str, Any] = {}  # noqa: RUF012  (never written to)


@dataclass
class AccountRow:
    """A line of the account."""

    theirs: str
    ours: str | None
    fate: Fate
    why: str
    value: Any = None
    where: str = ""

    def as_json(self) -> dict[str, Any]:
        shown = self.value if isinstance(self.value, str | int | float | bool | list | None) else str(self.value)
        return {"theirs": self.theirs, "ours": self.ours, "fate": self.fate, "why": self.why, "value": shown, "where": self.where}


@dataclass
class Draft:
    """A config in the making. tree: dotted keys of ours; reasons: why each is as it is; todo: what is left to people; refused: why no run
    of holdfast does what theirs does."""

    program: str
    tree: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    rows: list[AccountRow] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def as_tree(self) -> dict[str, Any]:
        """Return the config with its sections."""
        root: dict[str, Any] = {}
        for path, value in self.tree.items():
            *sections, name = path.split(".")
            node = root
            for section in sections:
                node = node.setdefault(section, {})
            node[name] = value
        return root


def same(ours: str, value: Any, why: str = SAME) -> KeyOutcome:
    return KeyOutcome("carried", why, ours, {ours: value})


def turned(ours: str, value: Any, why: str) -> KeyOutcome:
    return KeyOutcome("changed", why, ours, {ours: value})


def left(why: str, ours: str | None = None) -> KeyOutcome:
    return KeyOutcome("not_carried", why, ours)


def implied(ours: str | None, why: str) -> KeyOutcome:
    """Say that nothing needs to be set: holdfast does so anyway."""
    return KeyOutcome("changed", why, ours)


def flatten(tree: Any, path: str = "", where: str = "") -> Iterator[Key]:
    """Yield each key of a tree of values, sections before what is in them."""
    if isinstance(tree, dict) and tree:
        if path:
            yield Key(path, Contents(len(tree)), where)
        for name, value in tree.items():
            yield from flatten(value, f"{path}.{name}" if path else str(name), where)
    elif isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        yield Key(path, Contents(len(tree)), where)
        for at, item in enumerate(tree):
            yield from flatten(item, f"{path}[{at}]", where)
    else:
        yield Key(path, tree, where)
