"""Texts that a regular expression matches, made from its own syntax tree: one for each of its alternatives."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from typing import Any

parser: Any = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
MOST = 40  # alternatives of one pattern


def examples(pattern: re.Pattern[str]) -> list[str]:
    """Up to MOST texts, each with the least of every repetition but once at least; assertions are passed over."""
    return sorted(set(islice(_of(list(parser.parse(pattern.pattern, pattern.flags & ~re.U))), MOST)))


def _of(items: list[Any]) -> Iterator[str]:
    """The first example of each part, but for one part that runs through all of its own."""
    firsts = [next(_part(item)) for item in items]
    yield "".join(firsts)
    for at, item in enumerate(items):
        for other in islice(_part(item), 1, MOST):
            yield "".join([*firsts[:at], other, *firsts[at + 1 :]])


def _part(item: Any) -> Iterator[str]:
    kind, value = str(item[0]), item[1]
    if kind == "LITERAL":
        yield chr(value)
    elif kind == "NOT_LITERAL":
        yield "a" if value != ord("a") else "b"
    elif kind == "ANY":
        yield "a"
    elif kind == "IN":
        yield _of_set(value)
    elif kind == "BRANCH":
        for branch in value[1]:
            yield from _of(list(branch))
    elif kind == "SUBPATTERN":
        yield from _of(list(value[3]))
    elif kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        for one in _of(list(value[2])):
            yield one * max(1, min(value[0], 40))
    elif kind == "ATOMIC_GROUP":
        yield from _of(list(value))
    else:
        yield ""  # an assertion, a reference


def _of_set(members: list[Any]) -> str:
    negated = str(members[0][0]) == "NEGATE"
    if negated:
        inside = re.compile("[" + "".join(_as_text(member) for member in members[1:]) + "]")
        return next(char for char in "a0 .\n" if not inside.match(char))
    kind, value = str(members[0][0]), members[0][1]
    if kind == "CATEGORY":
        return {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_NOT_SPACE": "a", "CATEGORY_NOT_WORD": "."}.get(str(value), "a")
    return chr(value if kind == "LITERAL" else value[0])


def _as_text(member: Any) -> str:
    kind, value = str(member[0]), member[1]
    if kind == "LITERAL":
        return re.escape(chr(value))
    if kind == "RANGE":
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w", "NOT_DIGIT": r"\D", "NOT_SPACE": r"\S", "NOT_WORD": r"\W"}[str(value)[9:]]
