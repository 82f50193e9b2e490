"""Bring a row of any known layout into one form: what is given and what is to be learned. Knows no tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.rows.judge.names import (
    KNOWN_NAMES,
    MARKS,
    PAIRS,
    PREFERENCE,
    REJECTED,
    TWO_ANSWERS,
    Pair,
    in_our_case,
    name_them,
    pair_of,
    under_our_names,
)

_PAIR_BY_NAMES: dict[tuple[str, ...], Pair | None] = {}  # what rows of these fields are; None: no pair
_MOST_NAMES = 1000  # lists of fields that are kept, and characters of one
WITHOUT_TURNS = ("prompt-completion", "text")  # the layouts that no chat template is written around
_KNOWN = (
    "alpaca: instruction + output; prompt-completion: prompt + completion; chat: messages or conversations; "
    "question-answer: question + answer; text: text"
)
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "call",
    "tool_call": "call",
}
_ROLES = {"developer": "system", "function": "tool"}
_ALL_ROLES = {*_SHAREGPT_ROLES, *_ROLES}
_TURN_NAMES = {"role", "from"}
_PART_TEXTS = ("text", "value", "content")


class BadRow(Exception):
    """Why a row cannot be trained on: a short name that can be counted, and what exactly."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Message(NamedTuple):
    """One turn. `calls`: the tool calls it makes, each {"type": "function", "function": {"name", "arguments"}}."""

    role: str
    content: str
    calls: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a conversation (assistant turns are learned), or plain text with an optional given part (the rest is learned).

    `tools`: what the conversation's tools are, as its chat template takes them.
    """

    messages: tuple[Message, ...] = ()
    given: str = ""
    learned: str = ""
    tools: tuple[Any, ...] = ()
    layout: str = field(default="", compare=False)


def prompt_and_answer(value: Any) -> tuple[str, str, str] | None:
    """Layout, prompt and answer of a row that holds them in fields of their own, as nearly all rows do; None where `parse_example` has to
    look at it. The prompt of a text is empty."""
    if type(value) is not dict:
        return None
    names = tuple(value)
    pair = _PAIR_BY_NAMES[names] if names in _PAIR_BY_NAMES else _pair_by_names(value, names)
    if pair is None:
        return None
    answer = value[pair.answer]
    prompt = value[pair.question] if pair.question else ""
    if type(prompt) is not str or type(answer) is not str or not answer or answer.isspace():
        return None
    if pair.question and (not prompt or prompt.isspace()):
        return None
    extra = value.get(pair.extra) if pair.extra else None
    if extra is None or extra == "":
        return pair.layout, prompt, answer
    if type(extra) is not str:
        return None
    return pair.layout, prompt if extra.isspace() else f"{prompt}\n{extra}", answer


def _pair_by_names(value: dict[str, Any], names: tuple[str, ...]) -> Pair | None:
    if not PREFERENCE.isdisjoint(names):
        return None  # its values tell
    if any(name not in KNOWN_NAMES and in_our_case(name) in KNOWN_NAMES for name in names):
        return None
    try:
        layout, pair = _recognise(value, value)
    except BadRow:
        return None
    if layout == "text":
        pair = Pair("text", "", "", "text")
    if len(_PAIR_BY_NAMES) < _MOST_NAMES and sum(map(len, names)) < _MOST_NAMES:
        _PAIR_BY_NAMES[names] = pair
    return pair


def example_of(layout: str, prompt: str, answer: str) -> Example:
    """The example that `parse_example` makes of a row of which `prompt_and_answer` gives this."""
    if layout in WITHOUT_TURNS:
        return Example(given=prompt, learned=answer, layout=layout)
    return Example(messages=(Message("user", prompt), Message("assistant", answer)), layout=layout)


def parse_example(value: Any, layout: str, fields: Mapping[str, str] | None = None) -> Example:
    """Read one parsed row in `layout` ("auto": by its fields). `fields`: names of ours and those the file uses. Raises BadRow."""
    if isinstance(value, list) and value and all(isinstance(turn, dict) and "role" in map(in_our_case, turn) for turn in value):
        value = {"messages": value}
    if not isinstance(value, dict):
        raise BadRow("not_an_object", f"a JSON object is needed, this is {_kind(value)}")
    as_it_stands, value = value, under_our_names(value, fields or {})
    _refuse_preferences(value)
    name, pair = _recognise(value, as_it_stands) if layout == "auto" else (layout, pair_of(value, layout))
    if pair:
        return _from_pair(value, pair)
    if name == "text":
        return Example(learned=_answer(value, "text"), layout="text")
    return Example(messages=_conversation(value), tools=_tools(value), layout="chat")


def _recognise(value: dict[str, Any], as_it_stands: dict[str, Any]) -> tuple[str, Pair | None]:
    """The layout of a row under our names, and its pair if it is one. Raises BadRow, with the names as they stand in the file."""
    if "conversations" in value:
        return "chat", None
    for pair in PAIRS[:3]:
        if pair.question in value and pair.answer in value:
            return pair.layout, pair
    if "messages" in value:
        return "chat", None
    for pair in PAIRS[3:]:
        if pair.question in value and pair.answer in value:
            return pair.layout, pair
    if "text" in value:
        return "text", None
    for name, inside in value.items():
        if isinstance(inside, list) and inside and _looks_like_a_row(inside[0]):
            raise BadRow("missing_field", f"{len(inside):,} rows stand in one object's field {name!r}; jq -c '.{name}[]' takes them out")
    names = sorted(map(str, as_it_stands))[:20]
    raise BadRow("missing_field", f"fields {names} fit no known layout ({_KNOWN}); {name_them(value, as_it_stands)}")


def _refuse_preferences(value: dict[str, Any]) -> None:
    """Raise BadRow for a row that says which answer is better, or that its own is bad: learning the answer alone may be the opposite."""
    pair = next((names for names in TWO_ANSWERS if all(value.get(name) for name in names)), None)
    worse = next((name for name in REJECTED if value.get(name)), None)
    if pair or worse:
        fields = " and ".join(pair) if pair else f"an answer and {worse}"
        raise BadRow("preference_row", f"it holds {fields}, two answers of which one is the better; {_PREFERENCES}")
    mark = next((name for name in MARKS if _is_mark(value.get(name))), None)
    if mark and "text" not in value:
        kept = f"jq -c 'select(.{mark}) | del(.{mark})' keeps the good ones"
        raise BadRow("preference_row", f"its {mark} says whether the answer is a good one ({value[mark]}); {_PREFERENCES}, {kept}")


_PREFERENCES = "preferences (DPO, KTO, ORPO) cannot be trained on yet, only answers that are all good"


def _is_mark(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in ("true", "false"))


def _looks_like_a_row(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return "messages" in value or "conversations" in value or any(pair.question in value and pair.answer in value for pair in PAIRS)


def _from_pair(value: dict[str, Any], pair: Pair) -> Example:
    question = _text(value, pair.question)
    if pair.layout == "prompt-completion":
        return Example(given=_filled(question, pair.question), learned=_answer(value, pair.answer), layout=pair.layout)
    extra = _text(value, pair.extra, optional=True) if pair.extra else ""
    prompt = f"{question}\n{extra}" if extra.strip() else question
    turns = (Message("user", _filled(prompt, pair.question)), Message("assistant", _answer(value, pair.answer)))
    return Example(messages=turns, layout=pair.layout)


def _text(value: dict[str, Any], field: str, optional: bool = False) -> str:
    text = value.get(field)
    if isinstance(text, str):
        return text
    if text is None:
        if optional:
            return ""
        raise BadRow("missing_field", f"{field} is {'null' if field in value else 'missing'}")
    raise BadRow("wrong_type", f"{field} must be text, it is {_kind(text)}")


def _filled(text: str, field: str) -> str:
    if not text.strip():
        raise BadRow("empty_prompt", f"{field} is empty")
    return text


def _answer(value: dict[str, Any], field: str) -> str:
    text = _text(value, field)
    if not text.strip():
        raise BadRow("empty_answer", f"{field} is empty")
    return text


def _conversation(value: dict[str, Any]) -> tuple[Message, ...]:
    share = "messages" not in value
    field = "conversations" if share else "messages"
    turns = value.get(field)
    if not isinstance(turns, list):
        raise BadRow("missing_field" if turns is None else "wrong_type", f"{field} must be a list of turns, it is {_kind(turns)}")
    share = share and not any(isinstance(turn, dict) and "role" in map(in_our_case, turn) for turn in turns)
    messages = tuple(_turn(turn, number, share) for number, turn in enumerate(turns))
    system = value.get("system")
    if isinstance(system, str) and system.strip() and (not messages or messages[0].role != "system"):
        messages = (Message("system", system), *messages)
    if not any(message.role == "user" for message in messages):
        raise BadRow("no_user_turn", f"none of {len(messages)} turns is the user's")
    answers = [message for message in messages if message.role == "assistant"]
    if not answers:
        raise BadRow("no_assistant_turn", f"none of {len(messages)} turns is the assistant's, so there is nothing to learn")
    if not any(answer.content.strip() or answer.calls for answer in answers):
        raise BadRow("empty_answer", "every assistant turn is empty")
    return messages


def _turn(turn: Any, number: int, share: bool) -> Message:
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"turn {number} must be an object, it is {_kind(turn)}")
    turn = turn if turn.keys() & _TURN_NAMES else {in_our_case(name): inside for name, inside in turn.items()}
    role, content = (turn.get("from"), turn.get("value")) if share else (turn.get("role"), turn.get("content"))
    if isinstance(role, str) and role not in _ALL_ROLES and in_our_case(role) in _ALL_ROLES:
        role = in_our_case(role)
    calls = _calls(turn.get("tool_calls"), number)
    if isinstance(content, list):
        content = _joined(content, number)
    if content is None and calls:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        wanted = "from and value" if share else "role and content"
        raise BadRow("wrong_type", f"turn {number} needs {wanted} as text, it has {_kind(role)} and {_kind(content)}")
    if share:
        if role not in _SHAREGPT_ROLES:
            raise BadRow("wrong_role", f"turn {number} has role {role!r}; known are {sorted(_SHAREGPT_ROLES)}")
        role = _SHAREGPT_ROLES[role]
    if role == "call":
        return Message("assistant", "", _calls(_loaded(content), number)) if _loaded(content) is not None else Message("assistant", content)
    return Message(_ROLES.get(role, role), content, calls)


def _joined(parts: list[Any], number: int) -> str:
    """The text of a turn that is written as a list of parts."""
    texts = []
    for part in parts:
        text = next((part[key] for key in _PART_TEXTS if key in part), None) if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise BadRow("wrong_type", f"turn {number} has a part that is not text ({kind}); only text is trained on")
        texts.append(text)
    return "".join(texts)


def _calls(calls: Any, number: int) -> tuple[Any, ...]:
    """Tool calls in the form chat templates take: arguments as an object, not as its text."""
    if calls is None:
        return ()
    found = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRow("wrong_type", f"turn {number} has a tool call without the name of a function")
        given = function.get("arguments", {})
        arguments = _loaded(given) if isinstance(given, str) else given
        found.append({"type": "function", "function": {"name": function["name"], "arguments": given if arguments is None else arguments}})
    return tuple(found)


def _loaded(text: str) -> Any:
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _tools(value: dict[str, Any]) -> tuple[Any, ...]:
    tools = value.get("tools")
    if isinstance(tools, str):
        tools = _loaded(tools)
    return tuple(tools) if isinstance(tools, list) else ()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
