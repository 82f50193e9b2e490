"""Marks by which a turn or a row says what of it is learned: each that trainers read is followed, or a reason."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow
from holdfast.data.judge.unused import UnusedFields

TALK = [{"role": role, "content": text} for role, text in (("user", "q1"), ("assistant", "a1"), ("user", "q2"), ("assistant", "a2"))]
PART = {"begin_offset": 0, "end_offset": 1}


def learned(row: dict[str, Any]) -> list[str]:
    return [turn.content for turn in parse_example(row, "auto").messages if turn.role == "assistant" and turn.learn]


@pytest.mark.parametrize(
    "mark",
    [
        {"masked": True},
        {"masked": "true"},
        {"masked": 1},
        {"trainable": False},
        {"training_mask": 0},
        {"train_mask": "no"},
        {"train_detail": [PART | {"train": False}]},
        {"masked": None, "train": False},
    ],
)
def test_a_turn_that_is_marked_is_not_learned(mark: dict[str, Any]) -> None:
    assert learned({"messages": [TALK[0], TALK[1] | mark, *TALK[2:]]}) == ["a2"]


@pytest.mark.parametrize(
    "mark", [{"masked": False}, {"masked": None}, {"trainable": 1}, {"train_detail": [PART | {"train": True}]}, {"train_detail": None}]
)
def test_a_turn_that_is_marked_as_learned_is(mark: dict[str, Any]) -> None:
    assert learned({"messages": [TALK[0], TALK[1] | mark, *TALK[2:]]}) == ["a1", "a2"]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([0, 0, 0, 1], ["a2"]),
        ([1, 1, 1, 0], ["a1"]),
        ([0, 1], ["a2"]),
        ([True, False], ["a1"]),
        ([0, 1, 0, 1], ["a1", "a2"]),
        (None, ["a1", "a2"]),
    ],
)
@pytest.mark.parametrize("name", ["loss_mask", "training_mask", "train_mask"])
@pytest.mark.parametrize("field", ["messages", "conversations"])
def test_the_mask_of_a_row_is_followed_and_told_as_used(name: str, field: str, mask: Any, expected: list[str]) -> None:
    row = {field: TALK, name: mask}
    assert learned(row) == expected
    unused = UnusedFields()
    unused.add([(row, parse_example(row, "auto"))], {})
    assert name not in str(unused.as_json())


@pytest.mark.parametrize(
    ("first", "mask", "expected"),
    [
        ({"weight": 0.5}, None, [0.5, True]),
        ({"weight": "0.25"}, None, [0.25, True]),
        ({"loss_scale": 0.5, "train": True}, None, [0.5, True]),
        ({"loss_scale": 0.5, "train": False}, None, [False, True]),
        ({}, [0.5, 1], [0.5, True]),
        ({"weight": 0.5}, [0, 1, 0.25, 0.75], [0.5, 0.75]),
        ({"weight": 0.5}, [0.25, 0.0], [0.25, False]),
    ],
)
def test_a_share_between_zero_and_one_is_how_much_an_answer_counts(first: dict[str, Any], mask: Any, expected: list[Any]) -> None:
    row = {"messages": [TALK[0], TALK[1] | first, *TALK[2:]], "loss_mask": mask}
    assert [turn.learn for turn in parse_example(row, "auto").messages if turn.role == "assistant"] == expected


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"messages": TALK, "loss_mask": [0, 1, 1]}, "3 entries"),
        ({"messages": TALK, "loss_mask": [0, -0.5]}, "-0.5"),
        ({"messages": TALK, "loss_mask": "0011"}, "text"),
        ({"messages": [TALK[0], TALK[1] | {"weight": 1.5}]}, "data.row_weight"),
        ({"messages": [TALK[0], TALK[1] | {"weight": "nan"}]}, "weight"),
        ({"messages": [TALK[0], TALK[1] | {"weight": 1e-9}]}, "weight"),
        ({"messages": [TALK[0], TALK[1] | {"masked": 0.5}]}, "masked"),
        ({"messages": [TALK[0], TALK[1] | {"masked": 2}]}, "masked"),
        ({"messages": [TALK[0], TALK[1] | {"train_detail": [PART | {"end_offset": 0, "train": False}]}]}, "a part of it"),
        ({"messages": [TALK[0], TALK[1] | {"train_detail": [PART | {"train": False}, PART | {"train": True}]}]}, "a part of it"),
        ({"messages": [TALK[0], TALK[1] | {"train_detail": "all"}]}, "list of parts"),
    ],
)
def test_a_mark_that_cannot_be_followed_is_a_reason(row: dict[str, Any], told: str) -> None:
    with pytest.raises(BadRow, match="(?s).*" + told) as bad:
        parse_example(row, "auto")
    assert bad.value.reason == "bad_weight"


@pytest.mark.parametrize("said", ["21", [{"type": "text", "text": "21"}]])
def test_blocks_of_calls_and_results_are_the_turns_of_other_forms(said: Any) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "stock", "input": {"part": "M3"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": said}
    text = {"type": "text", "text": "I look."}
    blocks = [TALK[0], {"role": "assistant", "content": [text, use]}, {"role": "user", "content": [result]}, TALK[3]]
    call = {"id": "t1", "function": {"name": "stock", "arguments": '{"part": "M3"}'}}
    plain = [
        TALK[0],
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "21"},
        TALK[3],
    ]
    assert parse_example({"messages": blocks}, "auto") == parse_example({"messages": plain}, "auto")
    more = [*blocks[:2], {"role": "user", "content": [result, {"type": "text", "text": "so?"}]}, TALK[3]]
    assert [turn.role for turn in parse_example({"messages": more}, "auto").messages] == ["user", "assistant", "tool", "user", "assistant"]
    with pytest.raises(BadRow):
        parse_example({"messages": [TALK[0], {"role": "assistant", "content": [use | {"name": None}]}]}, "auto")


@pytest.mark.parametrize("field", ["messages", "conversations", "dialogue"])
@pytest.mark.parametrize(("who", "what"), [("speaker", "text"), ("Speaker", "Text"), ("speaker", "utterance")])
def test_turns_of_a_speaker_and_a_text_are_read(field: str, who: str, what: str) -> None:
    turns = [{who: speaker, what: text} for speaker, text in (("Human", "q1"), ("assistant", "a1"))]
    assert [(turn.role, turn.content) for turn in parse_example({field: turns}, "auto").messages] == [("user", "q1"), ("assistant", "a1")]
