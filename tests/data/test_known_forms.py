"""Files that hold conversations and no rows are told by their name, with the way to rows."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow

SAID = {"author": {"role": "user"}, "content": {"parts": ["hi"]}}
FORMS: dict[str, dict[str, Any]] = {
    "ChatGPT export": {"title": "t", "mapping": {"a": {"message": SAID, "parent": None}}, "current_node": "a"},
    "Claude export": {"uuid": "u", "name": "n", "chat_messages": [{"sender": "human", "text": "hi"}]},
    "Telegram": {"name": "Jo", "type": "personal_chat", "messages": [{"id": 1, "from": "Jo", "from_id": "user1", "text": "hi"}]},
    "Telegram's": {"type": "private_group", "messages": [{"type": "service", "actor": "Jo", "actor_id": "user1", "text": ""}]},
    "Claude Code": {"type": "user", "message": {"role": "user", "content": "hi"}, "uuid": "u", "sessionId": "s"},
    "Codex": {"timestamp": "t", "type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
}


@pytest.mark.parametrize("name", FORMS)
def test_a_known_form_is_told_by_its_name_with_the_way(name: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(FORMS[name], "auto")
    assert bad.value.reason == "not_rows" and name in bad.value.detail and '{"messages": [' in bad.value.detail


def test_rows_with_such_fields_are_read_as_before() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for row in (
        {"messages": turns, "uuid": "u", "type": "x", "sessionId": "s"},
        {"messages": turns, "timestamp": "t", "type": "x", "payload": None},
    ):
        assert [turn.content for turn in parse_example(row, "auto").messages] == ["q", "a"]


def test_a_row_as_the_hub_shows_it_is_read() -> None:
    row = {"row_idx": 0, "row": {"instruction": "q", "output": "a"}, "truncated_cells": []}
    assert [turn.content for turn in parse_example(row, "auto").messages] == ["q", "a"]
