"""Files that hold conversations and no rows are told by their name, with the way to rows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
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
    "like it": {"id": "1", "title": "t", "mapping": {"root": {"id": "root", "children": ["1"], "message": None}}},
    "Grok": {"conversation": {"id": "1"}, "responses": [{"response": {"message": "hi", "sender": "human"}}]},
    "OpenAssistant": {"message_id": "1", "parent_id": None, "text": "hi", "role": "prompter"},
    "tree of messages": {"message_tree_id": "1", "prompt": {"text": "hi", "role": "prompter", "replies": []}},
    "messenger": {"id": 1, "type": "message", "from": "Jo", "from_id": "user1", "text": ["hi ", {"type": "link", "text": "x"}]},
    "one message": {"type": "message", "user": "U1", "text": "hi", "ts": "1.2"},
    "of a messenger": {"name": "Jo", "is_user": True, "mes": "hi"},
    "one turn": {"role": "user", "content": "hi"},
    "without its answer": {"custom_id": "1", "method": "POST", "body": {"messages": [{"role": "user", "content": "hi"}]}},
    "without its question": {"custom_id": "1", "response": {"status_code": 200, "body": {}}},
    "Codex": {"timestamp": "t", "type": "response_item", "payload": {"type": "message", "role": "user", "content": []}},
}


@pytest.mark.parametrize("name", FORMS)
def test_a_known_form_is_told_by_its_name_with_the_way(name: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(FORMS[name], "auto")
    assert bad.value.reason == "not_rows" and name in bad.value.detail and '{"messages": [' in bad.value.detail


@pytest.mark.parametrize(
    ("row", "taken"),
    [
        ({"conversations": [FORMS["ChatGPT export"]]}, ".conversations[]"),
        ({"conversations": [FORMS["Grok"]], "projects": []}, ".conversations[]"),
        ({"about": "x", "chats": {"about": "y", "list": [FORMS["Telegram"]]}}, ".chats.list[]"),
    ],
)
def test_a_form_inside_of_an_object_is_told_with_where_it_stands(row: dict[str, Any], taken: str) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto")
    assert bad.value.reason == "not_rows" and f"jq -c '{taken}'" in bad.value.detail and '{"messages": [' in bad.value.detail


ASKED = {"messages": [{"role": "user", "content": "q"}], "tools": []}


@pytest.mark.parametrize(
    "row",
    [
        {"time": 1, "request": ASKED, "response": {"choices": [{"message": {"role": "assistant", "content": "a"}}]}},
        {"request_body": {"prompt": "q"}, "response_body": {"choices": [{"text": "a"}]}},
        {"request": {"input": "q"}, "response": "a"},
    ],
)
def test_a_logged_request_and_its_response_are_sent_to_the_command_that_joins_them(row: dict[str, Any]) -> None:
    """A filter that takes the turns alone would lose the answer."""
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto")
    assert bad.value.reason == "not_rows" and "holdfast data collect" in bad.value.detail


def test_turns_within_an_object_are_taken_out_with_their_tools() -> None:
    turns = [*ASKED["messages"], {"role": "assistant", "content": "a"}]
    for beside, taken in (({"tools": []}, "{messages: .messages, tools: .tools}"), ({}, "{messages: .messages}")):
        with pytest.raises(BadRow) as bad:
            parse_example({"log": {"messages": turns, **beside}}, "auto")
        assert f"jq -c '.log | {taken}'" in bad.value.detail


@pytest.mark.parametrize(
    ("turns", "speakers"),
    [
        ([{"sender_name": "Jo", "content": "hi"}, {"sender_name": "Al", "content": "ho"}], "sender_name ('Jo', 'Al')"),
        ([{"author": {"name": "jo", "id": "1"}, "content": "hi"}], "author ('jo')"),
        ([{"speaker": "A", "text": "hi"}, {"speaker": "B", "text": "ho"}], "speaker ('A', 'B')"),
        ([{"message": "hi", "is_human": True}], "is_human ('True')"),
        ([{"from": "8:jo", "content": "hi"}], "from ('8:jo')"),
        ([{"type": "user", "content": "hi"}, {"type": "gemini", "content": "ho"}], "type ('user', 'gemini')"),
    ],
)
def test_turns_without_a_known_role_are_told_by_who_speaks(turns: list[Any], speakers: str) -> None:
    for name in ("messages", "conversation", "conversations"):
        with pytest.raises(BadRow) as bad:
            parse_example({"title": "t", name: turns}, "auto")
        assert speakers in bad.value.detail and '{"messages": [' in bad.value.detail


WAYS: list[dict[str, Any]] = [
    {"instruction": ["q1", "q2"], "output": ["a1", "a2"], "id": [1, 2]},
    {"prompt": {"0": "q1", "1": "q2"}, "completion": {"0": "a1", "1": "a2"}},
    {"columns": ["question", "answer"], "index": [0, 1], "data": [["q1", "a1"], ["q2", "a2"]]},
    {"conversations": ["q1", "a1"], "source": "x"},
    {"features": [], "rows": [{"row_idx": 0, "row": {"question": "q1", "answer": "a1"}, "truncated_cells": []}]},
    {"rows": [{"row": {"question": "q1", "answer": "a1"}}, {"row": {"question": "q2", "answer": "a2"}}]},
    {"id": "1", "chat": {"history": {}, "messages": [{"role": "user", "content": "q1"}, {"role": "assistant", "content": "a1"}]}},
    {"data_source": "x", "prompt": [{"role": "user", "content": "q1"}], "reward_model": {"ground_truth": "a1"}, "ability": "math"},
]


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not here")
@pytest.mark.parametrize("row", WAYS)
def test_the_way_that_is_told_makes_rows_that_are_read(row: dict[str, Any]) -> None:
    with pytest.raises(BadRow) as bad:
        parse_example(row, "auto")
    (way,) = re.findall(r"jq -c '(.*?)'(?: makes| takes)", bad.value.detail)
    made = subprocess.run(["jq", "-c", way], input=json.dumps(row), capture_output=True, text=True, check=True).stdout.splitlines()
    read = [parse_example(json.loads(line), "auto") for line in made]
    assert [one.learned or one.messages[-1].content for one in read] == ["a1", "a2"][: len(read)] and read


def test_rows_with_such_fields_are_read_as_before() -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    for row in (
        {"messages": turns, "uuid": "u", "type": "x", "sessionId": "s"},
        {"messages": turns, "timestamp": "t", "type": "x", "payload": None},
        {"question": "q", "response": "a", "custom_id": "1", "body": "x", "columns": 3, "reward_model": "m", "data_source": "x"},
    ):
        assert [turn.content for turn in parse_example(row, "auto").messages] == ["q", "a"]


def test_a_row_as_the_hub_shows_it_is_read() -> None:
    row = {"row_idx": 0, "row": {"instruction": "q", "output": "a"}, "truncated_cells": []}
    assert [turn.content for turn in parse_example(row, "auto").messages] == ["q", "a"]
