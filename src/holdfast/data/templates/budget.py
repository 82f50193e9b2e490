"""What one rendering of a chat template may take: turns, items looked at, bytes made, and time on the processor.

Each thing a template calls is weighed before it is called and measured behind: a list that stands in itself many times counts as
often as it would be written out.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jinja2

LONGEST = 1 << 24  # characters of a text that a template makes; of a row there are no more
WIDEST = 1 << 12  # columns that a text is filled up to
_TURNS = 1_000_000  # of all loops and calls of one rendering
_ITEMS = 3_000_000  # of all lists that are gone through in one call or another
_MADE = 1 << 30  # bytes of all texts and lists made
_CPU_S = 10.0
DEEPEST = 500  # lists in lists
_ENTRY = 64  # bytes that an entry of a list takes with its text, at least
_EACH = 1 << 10  # items between two looks at the clock
_MOST_TEXT = 1 << 16  # characters for filters whose work grows with the square of their text, or that no chat template needs
_WIDTHS = re.compile(r"\d{5,}|\*|\{[^{}]+\{")  # in a format: wider than that, or by an argument
_TIME_WIDTH = re.compile(r"%[^A-Za-z%]*\d{3}")

_WIDE = ("center", "indent", "wordwrap")  # filters that take a width
_FILLING = {"center", "ljust", "rjust", "zfill", "expandtabs", "to_bytes"}  # methods that take one
_SQUARE = ("striptags", "urlize", "xmlattr", "wordwrap", "pprint", "wordcount", "title", "forceescape")
_LAZY = (
    "length",
    "count",
    "first",
    "last",
    "default",
    "d",
    "list",
    "reverse",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "attr",
)
_SPREADING = ("replace", "join", "indent", "wordwrap", "translate")  # put a text of their arguments wherever something stands


class TooMuch(jinja2.TemplateRuntimeError):
    """A template takes more time or memory than any conversation needs."""


@dataclass
class RenderBudget:
    """What a rendering has taken so far. Raises TooMuch where that is more than it may."""

    turns: int = 0
    items: int = 0
    made: int = 0
    begun_s: float = field(default_factory=time.thread_time)

    def turn(self) -> None:
        """Count one turn of a loop, or one call."""
        self.turns += 1
        if self.turns > _TURNS or time.thread_time() - self.begun_s > _CPU_S:
            raise TooMuch(f"its loops and calls take more than {_TURNS:,} turns, or more than {_CPU_S:.0f} s")
        if ending.is_set():
            raise TooMuch("the command ends")

    def items_of(self, values: Iterable[Any]) -> tuple[int, int]:
        """Count (items, characters) of values with all that stands in them, as often as it stands there."""
        found = characters = 0
        waiting: list[tuple[Iterator[Any], int]] = [(iter(values), 0)]
        while waiting:
            inner, depth = waiting[-1]
            for value in inner:
                found += 1
                kind = type(value)
                if kind is str or kind is bytes:
                    characters += len(value)
                elif kind is range:
                    found += len(value)
                elif kind is list or kind is tuple or kind is set or kind is dict:
                    if depth >= DEEPEST:
                        raise TooMuch(f"it puts lists in lists more than {DEEPEST} deep")
                    parts = (*value.keys(), *value.values()) if kind is dict else value
                    waiting.append((iter(parts), depth + 1))
                    break
                if not found % _EACH:
                    self._check(found)
            else:
                waiting.pop()
        self.items += found
        self._check(0)
        if characters > LONGEST:
            raise TooMuch(f"it hands on more than {LONGEST:,} characters at once")
        return found, characters

    def _check(self, found: int) -> None:
        if self.items + found > _ITEMS:
            raise TooMuch(f"it goes through more than {_ITEMS:,} items")
        if time.thread_time() - self.begun_s > _CPU_S:
            raise TooMuch(f"it takes more than {_CPU_S:.0f} s")

    def measured(self, value: Any) -> Any:
        """Count a value that was made, and return it; an iterator of values comes back as one that counts them."""
        kind = type(value)
        if kind is str or kind is bytes or kind is list or kind is tuple:  # not the marks of skeleton.py, which tell nothing of themselves
            if len(value) > LONGEST:
                raise TooMuch("it makes a text of more than 16 million characters")
            self.made += value.__sizeof__() if kind is str or kind is bytes else _ENTRY * len(value)
            if self.made > _MADE:
                raise TooMuch(f"it makes texts and lists of more than {_MADE >> 20:,} MiB")
        elif isinstance(value, Iterator) and hasattr(value, "gi_frame"):
            return self.counting(value)
        return value

    def counting(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yield the values, each counted as a turn of a loop."""
        for value in values:
            self.turn()
            yield self.measured(value)


ending = threading.Event()  # set where the command ends: no rendering goes on
_now = threading.local()


def begin() -> RenderBudget:
    """Begin a rendering in this thread."""
    _now.spent = RenderBudget()
    return _now.spent  # type: ignore[no-any-return]


def spent() -> RenderBudget:
    """Return the budget spent by the rendering in this thread."""
    found = getattr(_now, "spent", None)
    return found if isinstance(found, RenderBudget) else begin()


def weigh_filter(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count what a filter or a test is about to do. Raises TooMuch."""
    now = spent()
    now.turn()
    given = (*args, *kwargs.values())
    _refuse_numbers(name, given, _WIDE)
    if name == "format" and any(isinstance(value, str) for value in given):
        weigh_format(str(next(value for value in given if isinstance(value, str))), given[1:])
    if name in _LAZY:
        now.items += len(args[0]) if args and type(args[0]) in (list, tuple, dict) else 0
        return
    if all(type(value) is str and len(value) < WIDEST for value in given):  # as nearly all are
        return
    items, characters = now.items_of(given)
    if name in _SQUARE and characters > _MOST_TEXT:
        raise TooMuch(f"it asks {name} for a text of more than {_MOST_TEXT:,} characters")
    _refuse_spreading(name, given, items + characters)
    if name == "sum" and any(type(value) in (str, list, tuple) for value in (*args[-1:], *kwargs.values())) and items > WIDEST:
        raise TooMuch("it adds up too many texts or lists")


def weigh_call(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Count what a method of a text, a list or a number, or a macro, is about to do. Raises TooMuch."""
    now = spent()
    now.turn()
    given = (*args, *kwargs.values())
    _refuse_numbers(name, given, _FILLING)
    if type(owner) in (str, bytes, list, tuple):
        items, characters = now.items_of((owner, *given))
        _refuse_spreading(name, (*given, owner) if name == "join" else (owner, *given), items + characters)


def weigh_format(form: str, given: Iterable[Any]) -> None:
    """Count what a format with these arguments may write. Raises TooMuch."""
    if _WIDTHS.search(form):
        raise TooMuch("it formats a text too widely")
    items, characters = spent().items_of(given)
    if (form.count("%") + form.count("{")) * (8 * items + characters) > 4 * LONGEST:
        raise TooMuch("it formats too long a text too often")


def weigh_operation(operator: str, left: Any, right: Any) -> None:
    """Count what an operator between two values is about to make. Raises TooMuch."""
    spent().turn()
    if operator == "*" and not _small(left, right):
        raise TooMuch("it repeats a text or list too often")
    if operator == "**" and not (abs(left) < WIDEST and abs(right) < WIDEST):
        raise TooMuch("it raises a number to too high a power")
    if operator == "%" and isinstance(left, str):
        weigh_format(left, (right,))


def refuse_wide_times(form: Any) -> str:
    """Return the format of a date as text. Raises TooMuch where it names a width or is too long."""
    text = str(form)
    if len(text) > WIDEST or _TIME_WIDTH.search(text):
        raise TooMuch("it formats a date too widely")
    return text


def _refuse_numbers(name: str, given: Iterable[Any], wide: Iterable[str]) -> None:
    most = WIDEST if name in wide or name == "round" else _TURNS if name in ("batch", "slice") else None
    if most is not None and any(isinstance(value, int) and value > most for value in given):
        raise TooMuch(f"it asks {name} for too wide a text")


def _refuse_spreading(name: str, given: tuple[Any, ...], size: int) -> None:
    """Refuse a text put in too many places: `size` times the longest text or the greatest width. Raises TooMuch."""
    if name not in _SPREADING:
        return
    widths = [value if type(value) is int else len(value) if type(value) is str else 0 for value in given[1:]]
    longest = max(widths, default=0)
    if name == "translate":
        longest = max((len(text) for table in given[1:] if type(table) is dict for text in table.values() if type(text) is str), default=0)
    if size * (longest + 1) > LONGEST * (4 if longest < 8 else 1):
        raise TooMuch(f"it asks {name} to put too long a text in too many places")


def _small(left: Any, right: Any) -> bool:
    """True if a product is one of numbers that a machine holds, or no longer than a text may be."""
    sizes = [len(side) if isinstance(side, (str, bytes, list, tuple)) else 0 for side in (left, right)]
    times = [side for side in (left, right) if isinstance(side, int)]
    if len(times) == 2:
        return sum(abs(side).bit_length() for side in times) < LONGEST >> 4
    return len(times) != 1 or max(sizes) * times[0] <= LONGEST
