"""Examples and the turns they are made of: read from whatever form a file gives them. Knows no tokenizer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.data.judge.names import THINKING, in_our_case

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
    """One turn. `calls`: the tool calls it makes, each {"type": "function", "function": {"name", "arguments"}}; `thinking`: what the
    assistant thought before it, apart from the content.
    """

    role: str
    content: str
    calls: tuple[Any, ...] = ()
    thinking: str = ""

    @property
    def said(self) -> str:
        """All text of it."""
        return f"{self.thinking}\n{self.content}" if self.thinking else self.content


@dataclass(frozen=True, slots=True)
class Example:
    """One row: a conversation (assistant turns are learned), or plain text with an optional given part (the rest is learned).

    `tools`: what the conversation's tools are, as its chat template takes them. `worse`: the same conversation with the worse answer.
    `good`: False where the answer is one that is not to be given.
    """

    messages: tuple[Message, ...] = ()
    given: str = ""
    learned: str = ""
    tools: tuple[Any, ...] = ()
    worse: tuple[Message, ...] = ()
    good: bool = True
    layout: str = field(default="", compare=False)


def conversation(value: dict[str, Any]) -> tuple[Message, ...]:
    share = "messages" not in value
    field = "conversations" if share else "messages"
    turns = value.get(field)
    if not isinstance(turns, list):
        raise BadRow("missing_field" if turns is None else "wrong_type", f"{field} must be a list of turns, it is {kind_of(turns)}")
    share = share and not any(isinstance(turn, dict) and "role" in map(in_our_case, turn) for turn in turns)
    messages = tuple(turn_of(turn, number, share) for number, turn in enumerate(turns))
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


def turn_of(turn: Any, number: int, share: bool | None = None) -> Message:
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"turn {number} must be an object, it is {kind_of(turn)}")
    turn = turn if turn.keys() & _TURN_NAMES else {in_our_case(name): inside for name, inside in turn.items()}
    share = "role" not in turn if share is None else share
    role, content = (turn.get("from"), turn.get("value")) if share else (turn.get("role"), turn.get("content"))
    if isinstance(role, str) and role not in _ALL_ROLES and in_our_case(role) in _ALL_ROLES:
        role = in_our_case(role)
    calls = _calls(turn.get("tool_calls"), number)
    thinking = next((text for name in THINKING if isinstance(text := turn.get(name), str) and text.strip()), "")
    if isinstance(content, list):
        thoughts = [part["thinking"] for part in content if isinstance(part, dict) and isinstance(part.get("thinking"), str)]
        thinking = thinking or "\n".join(thoughts)
        content = _joined([part for part in content if not isinstance(part, dict) or "thinking" not in part], number)
    if content is None and calls:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        wanted = "from and value" if share else "role and content"
        raise BadRow("wrong_type", f"turn {number} needs {wanted} as text, it has {kind_of(role)} and {kind_of(content)}")
    if share:
        if role not in _SHAREGPT_ROLES:
            raise BadRow("wrong_role", f"turn {number} has role {role!r}; known are {sorted(_SHAREGPT_ROLES)}")
        role = _SHAREGPT_ROLES[role]
    if role == "call":
        return Message("assistant", "", _calls(_loaded(content), number)) if _loaded(content) is not None else Message("assistant", content)
    return Message(_ROLES.get(role, role), content, calls, thinking if role == "assistant" else "")


def _joined(parts: list[Any], number: int) -> str:
    """The text of a turn that is written as a list of parts."""
    texts = []
    for part in parts:
        text = next((part[key] for key in _PART_TEXTS if key in part), None) if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else kind_of(part)
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


def tools_of(value: dict[str, Any]) -> tuple[Any, ...]:
    tools = value.get("tools")
    if isinstance(tools, str):
        tools = _loaded(tools)
    return tuple(tools) if isinstance(tools, list) else ()


def kind_of(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
