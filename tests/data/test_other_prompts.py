"""Answers that a template writes behind another prompt than the one it asks for them with: none is lost, and what was done is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow
from holdfast.data.templates.chat_template import write
from holdfast.data.templates.template import render
from holdfast.data.tokens.codec import Codec
from support.chat_templates import codec_with
from support.other_prompts import OTHER_PROMPTS

SYSTEM, ASK, TELL = (
    {"role": role, "content": text} for role, text in (("system", "Be kind."), ("user", "How many?"), ("assistant", "Nine."))
)
AGAIN, LAST = {"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Three."}


def called(part: str, **beside: Any) -> list[dict[str, Any]]:
    call = {"id": f"call{part}", "type": "function", "function": {"name": "stock", "arguments": {"part": part}}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]} | beside
    return [turn, {"role": "tool", "name": "stock", "tool_call_id": call["id"], "content": f'found "{part}"\nin store'}]


CALLS = {
    "a call": [ASK, *called("M3"), TELL],
    "a thought at a call": [ASK, *called("M3", reasoning_content="Count them."), TELL],
    "content beside a call": [ASK, *called("M3", content="I look."), TELL],
    "two rounds": [ASK, *called("M3", content="I look."), *called("M4", content="Once more."), TELL],
    "two questions": [ASK, *called("M3", content="I look."), TELL, AGAIN, *called("M4", content="Once more."), LAST],
}
TALKS = {"a system turn": [SYSTEM, ASK, TELL], "two answers": [SYSTEM, ASK, TELL, AGAIN, LAST], "no system turn": [ASK, TELL, AGAIN, LAST]}
WITHOUT_CALLS = ("system in the last user turn", "counts the turns")
KINDS = [(shape, name) for shape in OTHER_PROMPTS for name in (TALKS if shape in WITHOUT_CALLS else CALLS)]


def said_of(turn: dict[str, Any], shape: str) -> list[str]:
    """What an answer says that its template has a place for."""
    parts = [call["function"]["arguments"]["part"] for call in turn.get("tool_calls", ())]
    thought = turn.get("reasoning_content") if shape == "thoughts at calls until an answer" else None
    return [text for text in (turn["content"], thought, *parts) if text]


def learned_in(codec: Codec, turns: list[dict[str, Any]]) -> tuple[list[str], set[str]]:
    found = write(parse_example({"messages": turns}, "auto"), codec.template)
    return [text for pieces in found.sequences for text, learned in pieces if learned], {reason for reason, _ in found.notes}


@pytest.mark.parametrize(("shape", "name"), KINDS)
def test_each_answer_is_learned_once_and_nothing_that_is_given(shape: str, name: str, tmp_path: Path) -> None:
    codec, turns = codec_with(tmp_path, OTHER_PROMPTS[shape]), (TALKS | CALLS)[name]
    learned, reasons = learned_in(codec, turns)
    answers = [turn for turn in turns if turn["role"] == "assistant"]
    assert len(learned) == len(answers)
    for turn, text in zip(answers, learned, strict=True):
        repeated = shape == "one opening for all calls" and text.startswith("\n")  # whose template drops what is said there
        assert all(one in text for one in said_of(turn, shape)) or (repeated and "content_left_out" in reasons), (turn, text)
        others = [one for other in turns if other is not turn for one in (said_of(other, shape) or [other["content"]])]
        assert not any(one in text for one in others), (turn, text)


@pytest.mark.parametrize("name", TALKS)
def test_a_system_text_in_the_last_user_turn_stands_in_each_prompt(name: str, tmp_path: Path) -> None:
    codec, turns = codec_with(tmp_path, OTHER_PROMPTS["system in the last user turn"]), TALKS[name]
    example = parse_example({"messages": turns}, "auto")
    found = write(example, codec.template)
    for at, pieces in zip((at for at, one in enumerate(example.messages) if one.role == "assistant"), found.sequences, strict=False):
        prompt = render(codec.template, example.messages[:at], (), True)
        assert pieces[0] == (prompt, False) and (turns[0] is not SYSTEM or "Be kind." in prompt)
        assert pieces[1] == (f" {turns[at]['content']}<|im_end|>", True)
    assert ("prompt_differs" in dict(found.notes)) == (turns[0] is SYSTEM)


def test_an_answer_behind_a_call_with_a_thought_has_the_prompt_of_a_server(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, OTHER_PROMPTS["thoughts at calls until an answer"])
    example = parse_example({"messages": CALLS["a thought at a call"]}, "auto")
    found = write(example, codec.template)
    (pieces,) = found.sequences
    assert "".join(text for text, _ in pieces[:-1]) == render(codec.template, example.messages[:3], (), True)
    assert [text for text, learned in pieces if learned] == [
        'think Count them.<|im_end|><|im_start|>call stock {"part": "M3"}<|im_end|>',
        "final Nine.<|im_end|>",
    ]
    assert "prompt_differs" in dict(found.notes)


def test_a_second_round_of_calls_is_learned_as_the_whole_text_has_it_and_that_is_said(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, OTHER_PROMPTS["one opening for all calls"])
    learned, reasons = learned_in(codec, CALLS["two questions"])
    assert learned[2] == '\nstock {"part": "M4"}<|im_end|>' and "prompt_differs" in reasons
    thought, _ = learned_in(
        codec, [ASK, *called("M3", reasoning_content="Count."), TELL, AGAIN, *called("M4", reasoning_content="Again."), LAST]
    )
    assert thought[2] == 'Again.\n</think>\n\nstock {"part": "M4"}<|im_end|>'


def test_what_was_said_beside_a_call_is_given_before_the_next_answer(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, OTHER_PROMPTS["what is said beside a call behind its result"])
    learned, reasons = learned_in(codec, CALLS["content beside a call"])
    assert learned[-1] == "Nine.<|im_end|>\n" and "prompt_differs" in reasons


def test_a_row_of_which_a_template_keeps_nothing_is_rejected(tmp_path: Path) -> None:
    codec = codec_with(tmp_path, "{% for m in messages if m.role == 'user' %}<{{ messages | length }}>{{ m.content }}{% endfor %}")
    with pytest.raises(BadRow) as bad:
        learned_in(codec, [ASK, TELL])
    assert bad.value.reason == "turn_left_out"
