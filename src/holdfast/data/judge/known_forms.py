"""Forms of files that hold conversations and are no rows: what they are called, and how rows are made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class KnownForm(NamedTuple):
    """A form that programs write: by what a row of it is known, its name, and the way to rows."""

    fits: Callable[[Mapping[str, Any]], bool]
    name: str
    way: str


def known_form(value: Mapping[str, Any]) -> str:
    """Return what a row is that is an entry of a known form, and the way to rows, in words; "" where it is none."""
    return next((f"this is {form.name}, which is no row: {form.way}" for form in _FORMS if form.fits(value)), "")


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda value: all(name in value for name in names)


def _is_event_of_claude_code(value: Mapping[str, Any]) -> bool:
    return isinstance(value.get("message"), dict) and "sessionId" in value and "type" in value


def _is_event(value: Mapping[str, Any]) -> bool:
    payload = value.get("payload")
    return isinstance(value.get("type"), str) and isinstance(payload, dict) and "timestamp" in value


def _is_chat_of_telegram(value: Mapping[str, Any]) -> bool:
    turns = value.get("messages")
    first = turns[0] if isinstance(turns, list) and turns else None
    return isinstance(first, dict) and "role" not in first and bool(first.keys() & {"from_id", "actor_id"})


_ONE_A_TALK = 'write each conversation as one line {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}]}'
_FORMS = (
    KnownForm(
        _has("mapping", "current_node"), "a ChatGPT export (a tree of messages)", f"follow parent from current_node, and {_ONE_A_TALK}"
    ),
    KnownForm(_has("chat_messages"), "a Claude export", f"sender is the role (human: user), and {_ONE_A_TALK}"),
    KnownForm(_is_chat_of_telegram, "a chat of Telegram's result.json", f"say which from_id is the assistant, and {_ONE_A_TALK}"),
    KnownForm(
        _is_event_of_claude_code,
        "an event of a Claude Code session",
        f"take the message of its user and assistant events in order, and {_ONE_A_TALK}",
    ),
    KnownForm(
        _is_event, "an event of an agent's session (as Codex writes them)", f"take the payloads with a role in order, and {_ONE_A_TALK}"
    ),
)
