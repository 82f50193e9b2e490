"""Reasoning beside an answer: read in every common form, written where the template has a place for it, shown as it is trained."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.base.files import Json
from holdfast.config.config import Train
from holdfast.data.judge.layouts import parse_example
from holdfast.data.templates.chat_template import ChatTemplate, pieces
from holdfast.data.templates.sandbox import sandbox
from holdfast.data.token_set.length_bias import length_bias
from support.pairs import pairs_of

ASKED = {"role": "user", "content": "two and two?"}
KNOWS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SIMPLE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
FORMS: dict[str, Json] = {
    "reasoning_content": {"role": "assistant", "content": "four", "reasoning_content": "count"},
    "reasoning": {"role": "assistant", "content": "four", "reasoning": "count"},
    "parts": {"role": "assistant", "content": [{"type": "thinking", "thinking": "count"}, {"type": "text", "text": "four"}]},
    "parts in columns": {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "count", "text": None, "value": None},
            {"type": "text", "thinking": None, "text": None, "value": "four"},
        ],
    },
    "parts of reasoning": {"role": "assistant", "content": [{"type": "reasoning", "text": "count"}, {"type": "text", "text": "four"}]},
    "parts that are thoughts": {"role": "model", "parts": [{"text": "count", "thought": True}, {"text": "four", "thought": None}]},
}


def template_of(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, "", "<eos>", sandbox().from_string(source) if source else None, {} if source else None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("source", "end"), [(KNOWS, "</assistant>"), (SIMPLE, "</assistant>"), (None, "<eos>")])
def test_reasoning_is_learned_before_its_answer(form: str, source: str | None, end: str) -> None:
    example = parse_example({"messages": [ASKED, FORMS[form]]}, "auto", {}, "answers")
    assert example.messages[1].thinking == "count" and example.messages[1].content == "four"
    found: list[Any] = pieces(example, template_of(source))
    assert found[-1] == (f"<think>\ncount\n</think>\n\nfour{end}", True)


def test_a_row_without_reasoning_is_written_as_before() -> None:
    example = parse_example(
        {"messages": [ASKED, {"role": "assistant", "content": "four", "reasoning_content": " "}]}, "auto", {}, "answers"
    )
    assert pieces(example, template_of(KNOWS))[-1] == ("four</assistant>", True)


def test_a_leaning_of_pairs_to_the_longer_answer_is_told_and_a_balance_is_not() -> None:
    assert length_bias(pairs_of(200)) is None and length_bias(pairs_of(5)) is None
    tokens = pairs_of(200)
    for at in range(200):  # of each pair's worse answer no more than one token
        span = slice(int(tokens.starts[at]), int(tokens.starts[at + 1]))
        worse = (tokens.learned[span] == 3).nonzero()[0]
        tokens.learned[span][worse[1:]] = 2
    told = length_bias(tokens)
    assert told and told["longer"] > 0.95 and told["pairs"] == 200 and told["times"] > 2
    assert Train(objective="reward").objective == "reward"
