"""The environment that chat templates run in: jinja2's immutable sandbox as transformers sets it up, with bounds.

A template is a program that came with a model. The sandbox keeps it from reaching anything; the bounds keep it from taking all time
and memory: how often its loops turn, how long the texts are that it makes.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MARK_BEGIN, MARK_END = "\ufdd0", "\ufdd1"  # around what a template says is generated; no characters, so that no text has them
LONGEST = 1 << 24  # characters of a text that a template makes; of a row there are no more
_TURNS = 1_000_000  # of all loops of one rendering
_CPU_S = 10.0  # for one rendering
_WIDEST = 1 << 12  # columns that a text is filled up to
_WIDTHS = re.compile(r"\d{5,}|\*|\{[^{}]+\{")  # in a format: wider than that, or by an argument
_WIDE = ("center", "indent", "wordwrap")  # filters that take one
_LONG = ("join", "replace", "sum", "batch", "slice", "urlize")  # that make much of little
_FILLING = {"center", "ljust", "rjust", "zfill", "expandtabs"}  # methods of a text that take a width


class TooMuch(jinja2.TemplateRuntimeError):
    """A template takes more time or memory than any conversation needs."""


class Generation(Extension):
    """{% generation %} ... {% endgeneration %}, by which a template says what the model generates: its text between two marks."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        begin, end = (nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (MARK_BEGIN, MARK_END))
        return [begin, nodes.Scope(body, lineno=line), end]


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with bounds; constant parts are not computed while a template is compiled."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The tree of a template whose loops count their turns and whose texts are measured where they are joined."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, "_counted", [], [], None, None, lineno=loop.lineno)
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [nodes.Filter(part, "_measured", [], [], None, None, lineno=joined.lineno) for part in joined.nodes]
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = nodes.Filter(block.filter, "_measured", [], [], None, None, lineno=block.lineno)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*" and not _small(left, right):
            raise TooMuch("it repeats a text or list too often")
        if operator == "**" and not (abs(left) < _WIDEST and abs(right) < _WIDEST):
            raise TooMuch("it raises a number to too high a power")
        if operator == "%" and isinstance(left, str) and _WIDTHS.search(left):
            raise TooMuch("it formats a text too widely")
        return _measured(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        if attribute in ("format", "format_map") and isinstance(obj, str) and _WIDTHS.search(obj):
            raise TooMuch("it formats a text too widely")
        return super().getattr(obj, attribute)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, str):
            if name in _FILLING and any(isinstance(value, int) and value > _WIDEST for value in (*args, *kwargs.values())):
                raise TooMuch(f"it asks {name} for too wide a text")
            if name == "replace" and len(args) > 1 and len(owner) * (len(str(args[1])) + 1) > LONGEST:
                raise TooMuch("it replaces too much by too long a text")
        return _measured(super().call(__context, __obj, *args, **kwargs))


def sandbox() -> Sandbox:
    """An environment for chat templates, as transformers documents it."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], optimized=False)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    plain = dict(environment.filters)
    environment.filters |= {name: _bounded(name, plain[name]) for name in (*_WIDE, *_LONG, "format")}
    environment.filters["tojson"] = to_json
    environment.filters["_counted"] = _counted
    environment.filters["_measured"] = _measured
    return environment


def bounded_text(parts: Iterable[str]) -> str:
    """What a template writes, part by part. Raises TooMuch where that is longer than a row may be."""
    found, size = [], 0
    for part in parts:
        found.append(part)
        size += str.__len__(part)
        if size > LONGEST:
            raise TooMuch(f"it writes more than {LONGEST:,} characters")
    return "".join(found)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """A value as JSON, other letters than ASCII as they are; what may be asked for is what transformers' filter takes."""
    if isinstance(indent, int) and indent > _WIDEST:
        raise TooMuch("it indents too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@jinja2.pass_context
def _counted(context: Context, values: Iterable[Any]) -> Iterable[Any]:
    """The values of a loop, counted over all loops of a rendering. Undefined values stay, for jinja2 to say so."""
    if isinstance(values, jinja2.Undefined):
        return values
    return _counting(values, context.vars.setdefault("_spent", _Spent()))


@dataclass
class _Spent:
    turns: int = 0
    begun_s: float = field(default_factory=time.thread_time)


def _counting(values: Iterable[Any], spent: _Spent) -> Iterator[Any]:
    for value in values:
        spent.turns += 1
        if spent.turns > _TURNS or time.thread_time() - spent.begun_s > _CPU_S:
            raise TooMuch(f"its loops turn more than {_TURNS:,} times, or for more than {_CPU_S:.0f} s")
        yield value


def _measured(value: Any) -> Any:
    if type(value) in (str, list, tuple) and len(value) > LONGEST:  # not the marks of skeleton.py, which tell nothing of themselves
        raise TooMuch("it makes a text of more than 16 million characters")
    return value


def _small(left: Any, right: Any) -> bool:
    """Whether a product is one of numbers, or no longer than a text may be."""
    sizes = [len(side) if isinstance(side, (str, list, tuple)) else 0 for side in (left, right)]
    times = [side for side in (left, right) if isinstance(side, int)]
    return len(times) != 1 or max(sizes) * times[0] <= LONGEST


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose result is measured, and its width before; its own marks (what of the context it wants) stay."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        if name in _WIDE and any(isinstance(value, int) and value > _WIDEST for value in (*args, *kwargs.values())):
            raise TooMuch(f"it asks {name} for too wide a text")
        if name == "format" and _WIDTHS.search(str(args[0])):
            raise TooMuch("it formats a text too widely")
        return _measured(function(*args, **kwargs))

    for mark, value in vars(function).items():
        setattr(bounded, mark, value)
    return bounded


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
