"""Rows that are too long: cut, rejected or split at turns and sentences, every token of an answer learned once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from conftest import make_rows, write_rows
from holdfast.base.files import Json
from holdfast.config.config import Data
from holdfast.data.judge.learned_turns import OFF
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.token_set.token_set import TokenSet, split
from holdfast.data.tokens.codec import Codec, Tokens, load_codec
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.data.tokens.too_long import fitted

Call = Callable[..., Json]
LIMIT = Rules(max_tokens=96, too_long="split")
SENTENCES = " ".join(f"amber {n} is birch." for n in range(30))


def parts_of(example: Example, codec: Codec) -> tuple[list[Tokens], list[str], Tokens]:
    (whole,) = codec.encode([pieces(example, codec.template)], Rules())
    assert isinstance(whole, Tokens)
    fit = codec.encode([pieces(example, codec.template)], LIMIT)[0]
    found = fitted(example, fit, codec, LIMIT)
    return list(found.rows), [reason for reason, _ in found.changes], whole


def learned(tokens: Tokens) -> list[int]:
    return [number for number, flag in zip(tokens.ids, tokens.learned, strict=True) if flag]


def talk(*answers: str) -> Example:
    turns = [Message("system", "be kind")]
    for number, answer in enumerate(answers):
        turns += [Message("user", f"question {number}"), Message("assistant", answer)]
    return Example(messages=tuple(turns), layout="chat")


@pytest.mark.parametrize(
    "example",
    [
        talk(*["cedar delta ember"] * 12),
        talk(SENTENCES),
        talk("fjord", SENTENCES, "grove", "heath"),
        Example(learned=SENTENCES, layout="text"),
    ],
    ids=["turns", "sentences", "both", "text"],
)
def test_every_token_of_an_answer_is_learned_once_and_every_part_fits(assets: SimpleNamespace, example: Example) -> None:
    codec = load_codec(assets.model)
    rows, changes, whole = parts_of(example, codec)
    assert changes == ["row_split"]
    assert len(rows) > 2
    assert all(len(row.ids) <= 96 for row in rows)
    assert [number for row in rows for number in learned(row)] == learned(whole)


def test_parts_end_with_a_sentence_and_begin_with_the_prompt(assets: SimpleNamespace) -> None:
    codec = load_codec(assets.model)
    rows, _, _ = parts_of(talk(SENTENCES), codec)
    texts = [codec.tokenizer.decode(learned(row)) for row in rows]
    assert all(text.rstrip().endswith(".") for text in texts[:-1]), texts
    prompt = rows[0].ids[: rows[0].learned.index(True)]
    assert all(row.ids[: len(prompt)] == prompt for row in rows)
    assert rows[1].learned.index(True) > len(prompt), "what stood before is given again, and not learned"


def test_turns_are_not_torn_apart_where_they_fit(assets: SimpleNamespace) -> None:
    codec = load_codec(assets.model)
    rows, _, _ = parts_of(talk(*["cedar delta ember"] * 12), codec)
    texts = [codec.tokenizer.decode(row.ids, skip_special_tokens=False) for row in rows]
    assert all("be kind" in text for text in texts)
    assert sum(text.count("question") for text in texts) == 12


def test_what_cannot_be_split_is_cut_or_refused(assets: SimpleNamespace) -> None:
    codec = load_codec(assets.model)
    long_prompt = Example(messages=(Message("user", "amber " * 60), Message("assistant", SENTENCES)), layout="alpaca")
    assert parts_of(long_prompt, codec)[1] == ["answer_cut"]
    with pytest.raises(BadRow) as refused:
        parts_of(Example(messages=(Message("user", "amber " * 200), Message("assistant", "x")), layout="alpaca"), codec)
    assert refused.value.reason == "all_labels_masked"


@pytest.mark.parametrize("taught", [[11], [0, 11], [5], [3, 4, 10]])
def test_answers_that_are_not_to_be_learned_cost_the_others_nothing(assets: SimpleNamespace, taught: list[int]) -> None:
    codec = load_codec(assets.model)
    said = [f"cedar delta ember {at}" for at in range(12)]
    turns, number = [], 0
    for turn in talk(*said).messages:
        turns.append(turn._replace(learn=number in taught or OFF) if turn.role == "assistant" else turn)
        number += turn.role == "assistant"
    rows, changes, whole = parts_of(Example(messages=tuple(turns), layout="chat"), codec)
    assert [number for row in rows for number in learned(row)] == learned(whole)
    assert all(len(row.ids) <= LIMIT.max_tokens for row in rows)
    assert changes == ["row_split"] and len(whole.ids) > LIMIT.max_tokens
    told = [codec.tokenizer.decode(learned(row)) for row in rows]
    assert all(said[at] in " ".join(told) for at in taught)


def test_check_train_and_clean_agree_on_rows_that_are_split(call: Call, tmp_path: Path, assets: SimpleNamespace) -> None:
    rows = [*make_rows(5), {"instruction": "Say", "output": SENTENCES}, {"instruction": "amber " * 300, "output": "x"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    options = ("--tokenizer", assets.model, "--max-tokens", 96, "--too-long", "split")
    answer = call("check", file, *options, code=1)
    assert (answer["kept"], answer["mended"], answer["rejected"]) == (5, 1, 1)
    assert answer["by_reason"] == {"row_split": 1, "all_labels_masked": 1}
    assert answer["tokens"]["max"] <= 96
    (block,) = blocks(str(file))
    shard = tokenise(block, LIMIT, load_codec(assets.model))
    assert answer["tokens"]["total"] == len(shard.ids)
    assert shard.lines.tolist()[:5] == [0, 1, 2, 3, 4]
    assert set(shard.lines.tolist()[5:]) == {5}
    assert len(shard.lines) > 7
    out = tmp_path / "clean.jsonl"
    call("clean", file, "--out", out, "--rejects", tmp_path / "r.jsonl", *options)
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows[:6], "the clean file has the rows whole"


def test_parts_of_a_row_are_all_trained_on_or_all_held_out() -> None:
    lines = np.repeat(np.arange(50), 4)
    zeros = np.zeros(200, np.int32)
    tokens = TokenSet(zeros, zeros.astype(np.uint8), np.arange(201), zeros, lines, ("f",), 0, 0)
    training, held_out = split(tokens, Data(files=["f"], held_out=0.1, too_long="split"), 0)
    assert len(training) + len(held_out) == 200
    assert len(held_out) >= 20
    assert not set(lines[training]) & set(lines[held_out])
