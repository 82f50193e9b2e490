"""Render a chat template once per shape of conversation instead of once per row, wherever that provably gives the same text.

The template is run with marks in place of the contents. A mark notes what the template asks of it (does it hold this literal? is it
stripped?) and answers as an ordinary text would. Contents of the same answers then give the same constants around them. Where a
template does anything else with a content, there is no skeleton, and it is rendered row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jinja2
from jinja2 import nodes

Piece = tuple[str, bool | float]  # a text, and whether it is learned: a share between 0 and 1 where it counts less than whole
BESIDE = 1.0  # of a piece that is learned and is no answer
# Part of a mark's text, which a filter that makes plain text of it (tojson, escape, title) changes, so that the mark is missed.
_CHANGED_BY_FILTERS = "\"\\&'<aB  b"
_OPAQUE = (nodes.Concat, nodes.AssignBlock, nodes.Macro, nodes.CallBlock, nodes.FilterBlock)  # these make plain text of a mark


class Unclear(Exception):
    """The template looks into a content in a way that is not followed."""


@dataclass
class _TemplateQuestions:
    """What a template wants to know of its contents."""

    absent: set[str] = field(default_factory=set)
    stripped: bool = False


class _JoinedMark(str):
    """A mark with text added to it: may be written out, and nothing else."""

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> _JoinedMark:
        return _JoinedMark(str.__add__(self, other))

    def __radd__(self, other: str) -> _JoinedMark:
        return _JoinedMark(str.__add__(other, self))

    __hash__ = str.__hash__


def _unclear(*_: Any, **__: Any) -> Any:
    raise Unclear


_OPERATORS = ("bool", "contains", "eq", "ne", "lt", "le", "gt", "ge", "len", "getitem", "iter", "mod", "mul", "rmul", "format")
for _name in (*(name for name in dir(str) if not name.startswith("_")), *(f"__{name}__" for name in _OPERATORS)):
    setattr(_JoinedMark, _name, _unclear)


class _Mark(_JoinedMark):
    """A content that is not there yet: not empty, without the literals it is asked for, without white space at its ends."""

    asked: _TemplateQuestions

    def __bool__(self) -> bool:
        return True

    def __contains__(self, text: object) -> bool:
        return self.startswith(text)

    def startswith(self, *texts: Any) -> bool:
        if len(texts) != 1 or type(texts[0]) is not str or not texts[0]:
            raise Unclear
        self.asked.absent.add(texts[0])
        return False

    endswith = startswith

    def strip(self, *characters: Any) -> _Mark:
        if any(characters):
            raise Unclear
        self.asked.stripped = True
        return self

    lstrip = rstrip = strip
    __hash__ = str.__hash__


@dataclass(frozen=True)
class Skeleton:
    """The pieces of a conversation: per piece the constants around its contents, and whether it is learned; and what contents must be."""

    parts: tuple[tuple[tuple[str, ...], bool | float], ...]
    absent: tuple[str, ...]
    stripped: bool
    notes: tuple[tuple[str, str], ...] = ()  # of every such conversation: reason and detail
    unended: int = 0  # of its answers: how many have no token that ends them
    last: int = -1  # the piece its last answer begins with, as RenderedRow has it

    @cached_property
    def frames(self) -> tuple[tuple[str, str, bool | float], ...] | None:
        """What stands before and behind the content of each piece, and whether it is learned; None where one has not just one content."""
        if any(len(constants) != 2 for constants, _ in self.parts):
            return None
        return tuple((constants[0], constants[1], learned) for constants, learned in self.parts)

    def fill(self, contents: Sequence[str]) -> list[Piece] | None:
        """Return the pieces with these contents in them; None for contents it does not hold for."""
        for text in contents:
            if (
                not text or text.isspace() or (self.stripped and (text[0].isspace() or text[-1].isspace()))
            ):  # of white space nothing is kept
                return None
            for literal in self.absent:
                if literal in text:
                    return None
        if self.frames is not None:
            return [(before + text + behind, learned) for (before, behind, learned), text in zip(self.frames, contents, strict=True)]
        found = []
        at = 0
        for constants, learned in self.parts:
            text = constants[0]
            for constant in constants[1:]:
                text += contents[at] + constant
                at += 1
            found.append((text, learned))
        return found


def followable(environment: jinja2.Environment, source: str) -> bool:
    """True if marks are followed to the end in this template: it has none of the constructs that make plain text of them."""
    return next(iter(environment.parse(source).find_all(_OPAQUE)), None) is None


def make_skeleton(pieces: Callable[[list[str]], list[Piece]], count: int) -> Skeleton | None:
    """Derive the skeleton from the pieces that `pieces` makes of `count` contents; None when it cannot be known."""
    asked = _TemplateQuestions()
    names = [f"\ue000{number}{_CHANGED_BY_FILTERS}\ue001" for number in range(count)]
    marks = [*map(_Mark, names)]
    for mark in marks:
        mark.asked = asked
    try:
        found = pieces([*marks])
    except Unclear:
        return None
    parts, number = [], 0
    for text, learned in found:
        constants = []
        while number < count and names[number] in text:
            constant, _, text = text.partition(names[number])
            constants.append(constant)
            number += 1
        parts.append(((*constants, text), learned))
    whole = number == count and not any("\ue000" in constant for constants, _ in parts for constant in constants)
    return Skeleton(tuple(parts), tuple(sorted(asked.absent)), asked.stripped) if whole else None
