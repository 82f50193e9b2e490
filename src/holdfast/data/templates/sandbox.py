"""The environment that chat templates run in: jinja2's immutable sandbox as transformers sets it up, with bounds.

A template is a program that came with a model. The sandbox keeps it from reaching anything; the bounds of budget.py keep it from taking
all time and memory.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from holdfast.data.templates.budget import (
    DEEPEST,
    LONGEST,
    TooMuch,
    begin,
    refuse_wide_times,
    spent,
    weigh_call,
    weigh_filter,
    weigh_format,
    weigh_operation,
)

MARK_BEGIN, MARK_END = "\ufdd0", "\ufdd1"  # around what a template says is generated; no characters, so that no text has them


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
        """Parse a template so that its loops count their turns and its texts are measured where they are joined, compared or written."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _through("_counted", loop.iter)
        for joined in tree.find_all(nodes.Concat):
            joined.nodes = [_through("_written", part) for part in joined.nodes]
        for compared in tree.find_all(nodes.Compare):
            compared.expr = _through("_compared", compared.expr)
            for operand in compared.ops:
                operand.expr = _through("_compared", operand.expr)
        for part in tree.find_all(nodes.Getitem):
            if isinstance(part.arg, nodes.Slice):
                part.node = _through("_sliced", part.node)
        for block in tree.find_all(nodes.AssignBlock):
            block.filter = nodes.Filter(block.filter, "_written", [], [], None, None, lineno=block.lineno)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        weigh_operation(operator, left, right)
        return spent().measured(super().call_binop(context, operator, left, right))

    def getattr(self, obj: Any, attribute: str) -> Any:
        found = super().getattr(obj, attribute)
        if attribute not in ("format", "format_map") or not isinstance(obj, str):
            return found

        def formatted(*args: Any, **kwargs: Any) -> Any:
            weigh_format(obj, (*args, *kwargs.values()))
            return found(*args, **kwargs)

        return formatted

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        weigh_call(getattr(__obj, "__self__", None), getattr(__obj, "__name__", ""), args, kwargs)
        return spent().measured(super().call(__context, __obj, *args, **kwargs))


def _through(name: str, node: Any) -> nodes.Filter:
    """Wrap a part of a template in a filter of ours."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def sandbox() -> Sandbox:
    """Return an environment for chat templates, as transformers documents it, without the filters that write texts of their own."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation], optimized=False, finalize=_written)
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(refuse_wide_times(form))
    environment.globals.pop("lipsum", None)
    environment.filters["tojson"] = to_json
    environment.filters = {name: _bounded(name, cast(Any, function)) for name, function in environment.filters.items()}
    environment.filters |= {"_counted": _counted, "_written": _written, "_compared": _compared, "_sliced": _sliced}
    environment.tests = {name: _bounded(name, cast(Any, function)) for name, function in environment.tests.items()}
    return environment


def bounded_text(parts: Iterable[str]) -> str:
    """Join a template's output, part by part, within the bounds of one rendering. Raises TooMuch where it is longer than a row may be."""
    begin()
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
    """Encode a value as JSON, other letters than ASCII as they are; the options are those of transformers' filter."""
    wide = (len(indent) if isinstance(indent, str) else indent or 0) + sum(map(len, separators or ()))
    if wide and spent().items_of((value,))[0] * wide * DEEPEST > 16 * LONGEST:
        raise TooMuch("it indents too far")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _counted(values: Iterable[Any]) -> Iterable[Any]:
    """Count the values of a loop, over all loops of a rendering. Undefined values stay, for jinja2 to say so."""
    return values if isinstance(values, jinja2.Undefined) else spent().counting(values)


def _written(value: Any) -> Any:
    """Return a value that is written out, as itself: the content of lists is counted as it will be written."""
    return _compared(spent().measured(value)) if type(value) in (str, list, tuple, dict, set) else value


def _compared(value: Any) -> Any:
    """Count the content of a value that is compared with another, and return it."""
    if type(value) in (list, tuple, dict, set):
        spent().items_of((value,))
    return value


def _sliced(value: Any) -> Any:
    """Count a value of which a part is copied as if all of it were, and return it."""
    if type(value) in (str, list, tuple):
        spent().turn()
        spent().measured(value)
    return value


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter or test: weighed before and measured behind; its own marks (what of the context it wants) stay."""

    def bounded(*args: Any, **kwargs: Any) -> Any:
        weigh_filter(name, args, kwargs)
        return spent().measured(function(*args, **kwargs))

    for mark, value in getattr(function, "__dict__", {}).items():
        setattr(bounded, mark, value)
    return bounded


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
