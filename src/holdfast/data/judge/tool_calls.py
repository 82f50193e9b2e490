"""Tool calls of turns, and the tools of a row, in the form chat templates take. Knows no tokenizer."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any

from holdfast.data.judge.bad_row import BadRow

_DEEPEST, SHOWN = 100, 120
_TOOLS = ("tools", "functions")
_NO_CALLS = ("null", "None")  # of a turn that makes none
_WOULD_WRITE = "learned as it is, the model would write such calls"
_MAY_BE_NULL = ("default", "const")  # of a JSON schema
Meant = Callable[[str, Any], Any]  # of a function's name and the arguments a file gives: those that the call was made with


def calls_of(calls: Any, number: int, meant: Meant) -> tuple[Any, ...]:
    """Return tool calls in the form chat templates take: arguments as an object, not as its text."""
    if isinstance(calls, str):
        text, calls, meant = calls, loaded(calls), _as_given
        if calls is None and text.strip() not in _NO_CALLS:
            raise BadRow("broken_tool_call", f"turn {number} makes a call that is no JSON object: {text[:SHOWN]!r}; {_WOULD_WRITE}")
    if calls is None:
        return ()
    found = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = (call.get("function") or call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRow("wrong_type", f"turn {number} has a tool call without the name of a function")
        arguments = _arguments(function, number, meant)
        own = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        found.append(own | {"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return tuple(found)


def _as_given(name: str, given: Any) -> Any:
    return given


def _arguments(function: dict[str, Any], number: int, meant: Meant) -> Any:
    given = function.get("arguments", function.get("parameters", {}))
    if given is None or given == [] or (isinstance(given, str) and not given.strip()):
        return {}
    arguments = loaded(given) if isinstance(given, str) else meant(function["name"], given)
    if not isinstance(arguments, dict | list):
        told = f"turn {number} calls {function['name']} with arguments that are no JSON object: {str(given)[:SHOWN]!r}"
        raise BadRow("broken_tool_call", f"{told}; {_WOULD_WRITE}")
    return arguments


def meant_in(row: dict[str, Any]) -> Meant:
    """Return what takes those null arguments out of a row's calls that its columns have put there for the calls of other rows.

    One that the tool does not take was put there, one that it requires was not; others were where all objects at one place have the same
    fields, as columns give them.
    """

    @cache
    def known() -> tuple[bool, dict[str, Any]]:
        return _alike({name: inside for name, inside in row.items() if name not in _TOOLS}, (), {}), _parameters(row)

    def meant(name: str, given: Any) -> Any:
        fewer = without_nulls(given)
        if fewer == given or not isinstance(given, dict):
            return given
        of_columns, tools = known()
        kept = fewer if of_columns else given
        takes, requires = tools.get(name, ({}, ()))
        stays = kept.keys() & takes if takes else kept.keys()
        return {key: kept.get(key) for key, inside in given.items() if inside is not None or key in stays or key in requires}

    return meant


def _alike(value: Any, place: tuple[str, ...], fields: dict[tuple[str, ...], set[str]]) -> bool:
    """Return whether all objects at one place have the same fields. fields: those at the places seen."""
    if len(place) > _DEEPEST or not isinstance(value, dict | list):
        return True
    if isinstance(value, list):
        return all(_alike(item, (*place, ""), fields) for item in value)
    same = fields.setdefault(place, set(value)) == value.keys()
    return same and all(_alike(inside, (*place, name), fields) for name, inside in value.items())


def _parameters(row: dict[str, Any]) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return (what it takes, what it requires) by the names of a row's tools, as far as the row says so."""
    tools: tuple[Any, ...] = ()
    with contextlib.suppress(BadRow):  # raised where the tools are read
        tools = tools_of(row)
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    schemas = {
        str(one.get("name")): inside for one in functions if isinstance(one, dict) and isinstance(inside := one.get("parameters"), dict)
    }
    found = {name: (schema.get("properties"), schema.get("required") or []) for name, schema in schemas.items()}
    return {name: (takes, asks) for name, (takes, asks) in found.items() if isinstance(takes, dict) and isinstance(asks, list)}


def without_nulls(value: Any, depth: int = 0) -> Any:
    """Remove the fields that are null from the value's objects: columns of objects give every row the fields of all rows."""
    if depth > _DEEPEST or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [without_nulls(item, depth + 1) for item in value]
    return {name: without_nulls(inside, depth + 1) for name, inside in value.items() if inside is not None or name in _MAY_BE_NULL}


def loaded(text: str) -> Any:
    """Parse a text as a JSON object or list; None where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def tools_of(value: dict[str, Any]) -> tuple[Any, ...]:
    """Return the tools of a row: a list, or its text. Raises BadRow for a text that is none."""
    tools = value.get("tools") or value.get("functions")
    if isinstance(tools, str):
        text, tools = tools, loaded(tools)
        if tools is None and text.strip() not in ("", "null", "None"):
            raise BadRow("wrong_type", f"tools must be a list of tools or its JSON, it is {text[:SHOWN]!r}")
    if isinstance(tools, dict):
        tools = [tools]
    if not isinstance(tools, list):
        return ()
    found = [loaded(tool) or tool if isinstance(tool, str) else tool for tool in tools]
    if not value.get("tools"):
        found = [tool if isinstance(tool, dict) and "function" in tool else {"type": "function", "function": tool} for tool in found]
    return tuple(map(without_nulls, found))
