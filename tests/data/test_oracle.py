"""What is learned of random conversations, held against transformers' own rendering and mask, and the quick way against the slow one."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from data.test_marked import TEMPLATES
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import Message
from holdfast.data.templates.chat_template import _by_shape, write
from holdfast.data.templates.conversation import write_conversation
from holdfast.data.tokens.codec import Codec, Tokens
from support.chat_templates import SHAPES, codec_with
from support.other_prompts import OTHER_PROMPTS
from support.selection import draws

MARKED = TEMPLATES | {"marks what is generated": SHAPES["marks what is generated"]}
UNMARKED = {name: source for name, source in (SHAPES | OTHER_PROMPTS).items() if name not in MARKED}
ODD = ("\x00", "\x07", "\x1c", "\x1f", "\x7f", "\x85", "\xa0", "\u200b", "\u2028", "\u3000", "\ufeff", "\ufffd", "\t", "\r\n", "\n\n", " ")
WORDS = ("word", "Zwölf", "数", "🙂", "<b>", "{{ x }}", "{% if %}", "</think>", "<think>", "[INST]", "a\nb", "'", '"', "\\", "%s", "-", "0")


def text_of(draw: random.Random) -> str:
    """Words with odd characters between them and, at times, at the ends; at times nothing else."""
    parts = draw.choices(WORDS, k=draw.randrange(1, 6)) + draw.choices(ODD, k=draw.randrange(3))
    draw.shuffle(parts)
    return draw.choice(ODD) if draw.random() < 0.05 else "".join(parts)


def talk_of(draw: random.Random) -> list[dict[str, Any]]:
    """A conversation of one to four exchanges, with a system turn before it at times."""
    system = [{"role": "system", "content": text_of(draw)}] if draw.random() < 0.3 else []
    roles = itertools.islice(itertools.cycle(("user", "assistant")), 2 * draw.randrange(1, 5))
    return system + [{"role": role, "content": text_of(draw)} for role in roles]


def messages_of(turns: list[dict[str, Any]]) -> tuple[Message, ...]:
    return tuple(Message(turn["role"], turn["content"]) for turn in turns)


@pytest.mark.parametrize("shape", UNMARKED | MARKED)
def test_the_quick_way_writes_what_the_slow_one_does(shape: str, tmp_path: Path) -> None:
    """2,000 conversations a template, 500 of them in `make test`."""
    template, draw, quick = codec_with(tmp_path, (UNMARKED | MARKED)[shape]).template, random.Random(shape), 0
    for _ in range(count := draws(2000, 500)):
        turns = talk_of(draw)
        example = parse_example({"messages": turns}, "auto") if all(turn["content"].strip() for turn in turns) else None
        found = example and _by_shape(example, template)
        if found:
            quick += 1
            assert found == write_conversation(messages_of(turns), (), template), turns
    assert (quick > count / 20) == (shape != "opens a thought in its prompt")  # which cuts contents up: row by row


def marked_by(codec: Codec) -> Any:
    """Transformers' token numbers and mask of turns."""
    theirs = AutoTokenizer.from_pretrained(codec.folder)

    def found(turns: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
        answer = theirs.apply_chat_template(turns, return_assistant_tokens_mask=True, return_dict=True)
        return answer["input_ids"], answer["assistant_masks"]

    return found


# Why token numbers may differ: transformers encodes the text as one, where a token may reach over the place where an answer begins or ends;
# a prompt is encoded alone when the model is used, and so are the pieces of a row. Texts and what of them is learned are equal.
@pytest.mark.parametrize("shape", MARKED)
def test_token_numbers_and_mask_are_those_of_transformers(shape: str, tmp_path: Path) -> None:
    codec, draw = codec_with(tmp_path, MARKED[shape]), random.Random(shape)
    theirs, equal = marked_by(codec), 0
    for _ in range(100):
        turns = [turn | {"content": turn["content"].replace("think>", "")} for turn in talk_of(draw)]  # reasoning: tests of its own
        if not all(turn["content"].strip() for turn in turns):
            continue
        written = write(parse_example({"messages": turns}, "auto"), codec.template)
        (ours,) = codec.encode(written.sequences, Rules())
        assert isinstance(ours, Tokens)
        ids, mask = theirs(turns)
        if (ours.ids, [*map(int, ours.learned)]) == (ids, mask):
            equal += 1
            continue
        decode = codec.tokenizer.decode
        assert decode(ours.ids, skip_special_tokens=False) == decode(ids, skip_special_tokens=False), turns
        pieces = [text for text, _ in written.sequences[0]]
        assert any(_reaches_over(codec, one, two) for one, two in itertools.pairwise(pieces)), turns
    assert equal >= 50


def _reaches_over(codec: Codec, one: str, two: str) -> bool:
    """Whether two pieces side by side have other tokens than their text has as one."""
    whole, *apart = (codec.tokenizer.encode(text, add_special_tokens=False).ids for text in (one + two, one, two))
    return bool(whole != apart[0] + apart[1])


# How an answer differs from the whole text behind its prompt, by template; all others are what transformers writes, to the letter.
EXPLAINED = {
    "always opens a turn": "the next turn's opening, which the template writes behind every turn, is not learned",
    "closes the last turn twice": "what closes the last turn alone is not learned of the earlier ones",
    "opens a thought in its prompt": "the thought that the prompt opens is not written before an answer: prompt_differs",
    "one opening for all calls": "the same",
    "system in the last user turn": "the whole text has no system turn: the answer stands behind the server's prompt",
    "counts the turns": "no prompt is the beginning of a text: learned as the whole text has it",
}


@pytest.mark.parametrize("shape", UNMARKED)
def test_each_answer_stands_where_transformers_writes_it(shape: str, tmp_path: Path) -> None:
    codec, draw, exact = codec_with(tmp_path, UNMARKED[shape]), random.Random(shape), 0
    other = 0
    theirs = AutoTokenizer.from_pretrained(codec.folder)
    for _ in range(100):
        turns = [turn | {"content": turn["content"].replace("think>", "")} for turn in talk_of(draw)]
        if not all(turn["content"].strip() for turn in turns):
            continue
        for at, (before, said) in zip(range(1, 99, 2), _answers(codec, turns), strict=False):
            until = at + (turns[0]["role"] == "system")
            prompt = theirs.apply_chat_template(turns[:until], add_generation_prompt=True, tokenize=False)
            whole = theirs.apply_chat_template(turns[: until + 1], tokenize=False)
            assert turns[until]["content"].strip() in said
            same = before == prompt and before + said == whole
            exact, other = exact + same, other + (not same)
            assert same or shape in EXPLAINED, (turns, until)
    assert exact or other
    assert bool(other) == (shape in EXPLAINED)


def _answers(codec: Codec, turns: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The text before each learned piece of its sequence, and the piece."""
    found = []
    for pieces in write(parse_example({"messages": turns}, "auto"), codec.template).sequences:
        before = ""
        for text, learned in pieces:
            if learned:
                found.append((before, text))
            before += text
    return found
