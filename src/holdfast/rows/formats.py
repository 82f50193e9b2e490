"""Bring a row of any known layout into one form: what is given and what is to be learned. Knows no tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LAYOUTS = {
    "alpaca": ("instruction", "output"),
    "prompt-completion": ("prompt", "completion"),
    "chat": ("messages",),
    "text": ("text",),
}
_SHAREGPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system", "tool": "tool"}


class BadRow(Exception):
    """Why a row cannot be trained on: a short name that can be counted, and what exactly."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True)
class Example:
    """One row: a conversation (assistant turns are learned), or plain text with an optional given part (the rest is learned)."""

    messages: tuple[Message, ...] = ()
    given: str = ""
    learned: str = ""


def parse_example(value: Any, layout: str) -> Example:
    """Read one parsed row in `layout` ("auto": by its fields). Raises BadRow."""
    if not isinstance(value, dict):
        raise BadRow("not_an_object", f"a JSON object is needed, this is {_kind(value)}")
    name = _recognise(value) if layout == "auto" else layout
    if name == "alpaca":
        question, extra = _text(value, "instruction"), _text(value, "input", optional=True)
        prompt = f"{question}\n{extra}" if extra.strip() else question
        return Example(messages=(Message("user", _filled(prompt, "instruction")), Message("assistant", _answer(value, "output"))))
    if name == "prompt-completion":
        return Example(given=_filled(_text(value, "prompt"), "prompt"), learned=_answer(value, "completion"))
    if name == "text":
        return Example(learned=_answer(value, "text"))
    return Example(messages=_conversation(value))


def _recognise(value: dict[str, Any]) -> str:
    if "conversations" in value:
        return "chat"
    for name, fields in LAYOUTS.items():
        if all(field in value for field in fields):
            return name
    known = "; ".join(f"{name}: {' + '.join(fields)}" for name, fields in LAYOUTS.items())
    raise BadRow("missing_field", f"fields {sorted(map(str, value))} fit no known layout ({known})")


def _text(value: dict[str, Any], field: str, optional: bool = False) -> str:
    if field not in value or value[field] is None:
        if optional:
            return ""
        raise BadRow("missing_field", f"{field} is {'null' if field in value else 'missing'}")
    if not isinstance(value[field], str):
        raise BadRow("wrong_type", f"{field} must be text, it is {_kind(value[field])}")
    return str(value[field])


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
    messages = tuple(_turn(turn, number, share) for number, turn in enumerate(turns))
    if not any(message.role == "user" for message in messages):
        raise BadRow("no_user_turn", f"none of {len(messages)} turns is the user's")
    answers = [message for message in messages if message.role == "assistant"]
    if not answers:
        raise BadRow("no_assistant_turn", f"none of {len(messages)} turns is the assistant's, so there is nothing to learn")
    if not any(answer.content.strip() for answer in answers):
        raise BadRow("empty_answer", "every assistant turn is empty")
    return messages


def _turn(turn: Any, number: int, share: bool) -> Message:
    if not isinstance(turn, dict):
        raise BadRow("wrong_type", f"turn {number} must be an object, it is {_kind(turn)}")
    role, content = (turn.get("from"), turn.get("value")) if share else (turn.get("role"), turn.get("content"))
    if not isinstance(role, str) or not isinstance(content, str):
        wanted = "from and value" if share else "role and content"
        raise BadRow("wrong_type", f"turn {number} needs {wanted} as text, it has {_kind(role)} and {_kind(content)}")
    if share:
        if role not in _SHAREGPT_ROLES:
            raise BadRow("wrong_role", f"turn {number} has role {role!r}; known are {sorted(_SHAREGPT_ROLES)}")
        role = _SHAREGPT_ROLES[role]
    return Message(role, content)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number", type(None): "nothing"}
    return names.get(type(value), type(value).__name__)
