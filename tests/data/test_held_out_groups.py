"""Which rows are held out: all or none of a conversation, of a prompt, of near-duplicates; and what of them stands in training."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import write_rows
from holdfast.config.config import Config
from holdfast.data.judge.rules import Rules
from holdfast.data.token_set.overlap import held_out_facts, keys_of, overlap_in, told_of_held_out
from holdfast.data.token_set.token_set import TokenSet, join_parts, load_tokens, split
from holdfast.data.tokens.cache import TokenCache, cache_key
from holdfast.data.tokens.codec import load_codec
from holdfast.data.workers.build import check_rows
from holdfast.data.workers.workers import Workers
from holdfast.run.sampling.step_table import split_groups, split_rows

SHARE, SEED = 0.2, 3


def built(model: Path, files: list[Path], out: Path, held_out: tuple[Path, ...] = (), grouped: bool = True) -> tuple[TokenSet, Config]:
    """The token set of the files, and its config."""
    codec, rules = load_codec(model), Rules(max_tokens=2000)
    named = {"files": [str(file) for file in files], "held_out_files": [str(file) for file in held_out]}
    config = Config(model="x", data=named | {"held_out": 0.0 if held_out else SHARE})
    with (out / "rejects.jsonl").open("wb") as rejects, Workers(codec, rules, 1) as hands:
        checked = check_rows(config, TokenCache(None, out / "spare", cache_key(codec, rules)), hands, rejects)
    assert not checked.verdicts.rejected, checked.first_rejected
    join_parts(out / "data.safetensors", checked.parts, config.data, codec.pad, grouped)
    return load_tokens(out / "data.safetensors"), config


def turns(*said: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]


def words(n: int, count: int = 40) -> str:
    return " ".join(f"{(n + 3) * 7919 * (k + 1) % 99991}" for k in range(count))


def one_is_longer(n: int) -> list[Any]:
    said = [f"question {n}", words(n), f"and then {n}", words(n + 500)]
    return [{"messages": turns(*said[:2])}, {"messages": turns(*said)}]


CASES = {
    "one is the beginning of the other": one_is_longer,
    "one id, other turns": lambda n: [
        {"conversation_id": f"c{n}", "messages": turns(words(n + 1000 * k), words(n + 9000 * k))} for k in (1, 2)
    ],
    "a plain id": lambda n: [{"id": n, "prompt": words(n + 1000 * k), "completion": words(n + 9000 * k)} for k in (1, 2)],
    "one prompt": lambda n: [{"prompt": f"{'QUESTION' if k else 'question'} {n}", "completion": words(n + 1000 * k)} for k in (0, 1)],
    "two good answers": lambda n: [{"prompt": words(n), "completion": words(n + 1000 * k)} for k in (1, 2)],
    "nearly the same": lambda n: [{"question": words(n) + mark, "answer": words(n + 1000)} for mark in ("", "?")],
    "the same text": lambda n: [{"text": words(n)}, {"text": words(n).upper() + " "}],
    "behind one system prompt": lambda n: [
        {"system": "be brief", "messages": turns(f"Question  {n}", words(n + 1000 * k), "and?", words(n + 5000 * k))} for k in (1, 2)
    ],
}


def test_rows_of_an_array_on_one_line_do_not_hang_together(assets: SimpleNamespace, tmp_path: Path) -> None:
    rows = [{"question": words(n), "answer": words(n + 1000)} for n in range(40)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    tokens, config = built(assets.model, [tmp_path / "rows.json"], tmp_path)
    assert tokens.group is None, "each row stands alone"
    assert len(split(tokens, config.data, SEED)[1]) == 8


@pytest.mark.parametrize("case", CASES)
def test_what_hangs_together_is_on_one_side(case: str, assets: SimpleNamespace, tmp_path: Path) -> None:
    pairs = [CASES[case](n) for n in range(40)]
    file = write_rows(tmp_path / "rows.jsonl", [pair[0] for pair in pairs] + [pair[1] for pair in pairs])
    tokens, config = built(assets.model, [file], tmp_path)
    training, held_out = split(tokens, config.data, SEED)
    assert len(tokens) == 80 and len(held_out) == 16 and sorted([*training, *held_out]) == list(range(80))
    assert not {row % 40 for row in training.tolist()} & {row % 40 for row in held_out.tolist()}
    facts = held_out_facts(tokens, config.data, SEED)
    assert facts["grouped"] == 80 and facts["moved"] > 0 and facts["same_prompt"] == 0
    (told,) = told_of_held_out(facts, by_file=False)
    assert "80 rows hang together" in told and f"{facts['moved']} rows changed sides" in told


def test_rows_that_stand_alone_are_drawn_as_before(assets: SimpleNamespace, tmp_path: Path) -> None:
    rows = [{"id": n, "prompt": words(n), "completion": words(n + 1000)} for n in range(30)]
    others = [{"id": n, "prompt": words(n + 5000), "completion": words(n + 6000)} for n in range(30)]  # counted from 0 in each file
    files = [write_rows(tmp_path / name, of) for name, of in (("a.jsonl", rows), ("b.jsonl", others))]
    tokens, config = built(assets.model, files, tmp_path)
    assert tokens.group is None and tokens.grouped_by == ("conversation", "prompt", "near_duplicate")
    for mine, before in zip(split(tokens, config.data, SEED), split_rows(60, SHARE, SEED), strict=True):
        assert np.array_equal(mine, before)
    assert not told_of_held_out(held_out_facts(tokens, config.data, SEED), by_file=False)


@pytest.mark.parametrize("shared", [{"id": "all"}, {"conversation_id": 7}, {"system": " ".join(["be brief and kind to everybody"] * 60)}])
def test_what_all_rows_share_does_not_hang_them_together(shared: dict[str, Any], assets: SimpleNamespace, tmp_path: Path) -> None:
    rows = [shared | {"messages": turns(words(n, 5), words(n + 1000, 5))} for n in range(40)]
    tokens, config = built(assets.model, [write_rows(tmp_path / "rows.jsonl", rows)], tmp_path)
    assert tokens.group is None and len(split(tokens, config.data, SEED)[1]) == 8


def test_a_token_set_from_before_keeps_its_split(assets: SimpleNamespace, tmp_path: Path) -> None:
    pairs = [CASES["one prompt"](n) for n in range(40)]
    file = write_rows(tmp_path / "rows.jsonl", [row for pair in pairs for row in pair])
    tokens, config = built(assets.model, [file], tmp_path, grouped=False)
    assert tokens.group is None and tokens.grouped_by is None
    assert np.array_equal(split(tokens, config.data, SEED)[1], split_rows(80, SHARE, SEED)[1])


def test_held_out_files_are_told_of_where_they_stand_in_training(assets: SimpleNamespace, tmp_path: Path) -> None:
    rows = [{"prompt": f"question {n}", "completion": words(n)} for n in range(20)]
    held = [rows[0], rows[1] | {"completion": "another"}, {"prompt": "question 99", "completion": "x y"}]
    files = [write_rows(tmp_path / name, of) for name, of in (("a.jsonl", rows), ("b.jsonl", held))]
    tokens, config = built(assets.model, files[:1], tmp_path, (files[1],))
    facts = held_out_facts(tokens, config.data, SEED)
    assert (facts["rows"], facts["same"], facts["same_prompt"], facts["moved"]) == (3, 1, 2, 0)
    (told,) = told_of_held_out(facts, by_file=True)
    assert told.startswith("! of 3 held-out rows 1 stand in training word for word, 2 with their prompt")


def test_held_out_rows_in_another_layout_or_case_are_told_of(assets: SimpleNamespace, tmp_path: Path) -> None:
    rows = [{"prompt": words(n), "completion": words(n + 1000)} for n in range(20)]
    held = [{"messages": turns(words(n).upper() + " ", words(n + 1000))} for n in range(4)] + [{"prompt": "other", "completion": "x y"}]
    files = [write_rows(tmp_path / name, of) for name, of in (("a.jsonl", rows), ("b.jsonl", held))]
    tokens, config = built(assets.model, files[:1], tmp_path, (files[1],))
    (told,) = told_of_held_out(held_out_facts(tokens, config.data, SEED), by_file=True)
    assert told.startswith("! of 5 held-out rows 0 stand in training word for word, 4 with their prompt or much alike"), told


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.sampled_from([0.0, 0.05, 0.2, 0.5]), st.integers(0, 5))
@settings(max_examples=200, deadline=None)
def test_groups_are_whole_and_both_sides_have_rows(labels: list[int], share: float, seed: int) -> None:
    first = np.array([labels.index(label) for label in labels])
    training, held_out = split_groups(first, share, seed)
    assert sorted([*training, *held_out]) == list(range(len(labels)))
    wanted = len(split_rows(len(labels), share, seed)[1])
    assert bool(len(held_out)) == bool(wanted) and len(training)
    if len(set(labels)) > 1:
        assert not set(first[training]) & set(first[held_out])
    alone = split_groups(np.arange(len(labels)), share, seed)
    assert np.array_equal(alone[1], split_rows(len(labels), share, seed)[1])


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=2, max_size=20), st.data())
@settings(max_examples=200, deadline=None)
def test_the_overlap_is_what_comparing_each_row_with_each_finds(rows: list[tuple[int, list[int]]], data: st.DataObject) -> None:
    """First learned token and tokens of each row."""
    ids = np.array([one for _, row in rows for one in row], np.int32)
    learned = np.array([at >= given for given, row in rows for at in range(len(row))], np.uint8)
    starts = np.cumsum([0, *(len(row) for _, row in rows)])
    held = data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1, max_size=len(rows) - 1))
    others = [row for at, row in enumerate(rows) if at not in held]
    prompts = [row[:given] for given, row in others if given >= 2]
    same = [at for at in held if rows[at][1] in [row for _, row in others]]
    prompt = [at for at in held if at in same or (rows[at][0] >= 2 and rows[at][1][: rows[at][0]] in prompts)]
    tokens = TokenSet(ids, learned, starts, np.zeros(len(rows), np.int32), np.arange(len(rows)), ("f",), 0, 0)
    training = np.array([at for at in range(len(rows)) if at not in held])
    assert tuple(overlap_in(tokens, training, np.array(sorted(held)))) == (len(held), len(same), len(prompt))
    assert len(keys_of(ids, learned, starts).whole) == len(rows)
