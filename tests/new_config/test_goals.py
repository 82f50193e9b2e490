"""What `init` hears of a goal, and that the reasons it writes hold for the values beside them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from conftest import make_rows, write_rows
from holdfast.base_model.folder import EMBEDDED
from holdfast.config.config import Config
from holdfast.config.foreign.keys import Draft
from holdfast.data.judge.rules import Rules
from holdfast.data.tokens.codec import load_codec, plain_codec
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.new_config.choose import ConfigChoice, choose, choose_table, size_in_name
from holdfast.new_config.rows import LookedAt, look_at_rows


def chosen(goal: str, rows: int = 300, kind: str = "answers", params: int | None = 10**9) -> ConfigChoice:
    choice = choose("tiny", params, ["rows.jsonl"], LookedAt(kind, ("prompt",), rows, 0, 90, 80, 9_000), goal, 2048)
    Config.model_validate(Draft("", choice.tree).as_tree())
    return choice


@pytest.mark.parametrize("rows", [40, 150, 300, 900, 3_000, 60_000])
@pytest.mark.parametrize("goal", ["", "a quick look"])
def test_the_steps_in_the_reasons_are_those_of_the_values(goal: str, rows: int) -> None:
    """A quick look has one pass, and its reasons counted the steps of five; ten looks were one."""
    choice = chosen(goal, rows)
    tree = choice.tree
    steps = rows * (1 - tree["data.held_out"]) / tree["train.effective_batch"] * tree["train.epochs"]
    told = [
        (key, int(found[1].replace(",", ""))) for key, why in choice.reasons.items() if (found := re.search(r"about ([\d,]+) steps", why))
    ]
    assert {key for key, _ in told} >= {"train.effective_batch", "train.warmup"}
    assert all(abs(number - steps) <= tree["train.epochs"] + 1 for _, number in told), (told, steps)
    warm = int(choice.reasons["train.warmup"].split()[0])
    assert abs(warm - tree["train.warmup"] * steps) <= 1
    looks = steps / tree["evaluate.every"] if "evaluate.every" in tree else None
    assert looks is None or steps < 100 or 9 <= looks <= 12
    assert looks is None or choice.reasons["evaluate.every"].startswith(f"{int(looks)} looks")
    assert ("seen often" in choice.reasons["adapter.dropout"]) and (tree["adapter.dropout"] > 0) is (
        choice.reasons["adapter.dropout"] == "few rows that are seen often"
    )


@pytest.mark.parametrize(
    ("row", "kind", "numbered"),
    [
        ({"prompt": "q", "completion": "a", "label": 0}, "marks", True),
        ({"prompt": "q", "completion": "a", "label": "False"}, "marks", False),
        ({"prompt": "q", "completion": "a", "label": False}, "marks", False),
        ({"prompt": "q", "completion": "a", "label": 3}, "answers", False),
        ({"prompt": "q", "completion": "a", "thumb": "0"}, "marks", True),
        ({"text": "a", "label": 0}, "answers", False),
        ({"question": "q", "label": 1}, "answers", False),
    ],
)
def test_marks_are_taken_for_marks(row: dict[str, Any], kind: str, numbered: bool, tmp_path: Path) -> None:
    """Marks of 0 and 1 were left out of a config for sft, which learned the bad answers, too; marks of a CSV file were no marks."""
    write_rows(tmp_path / "rows.jsonl", [row] * 3)
    looked = look_at_rows([str(tmp_path / "rows.jsonl")], None, (("label", "thumb"),) if "thumb" in row else ())
    assert (looked.kind, looked.numbered) == (kind, numbered)
    told = choose("tiny", None, ["rows.jsonl"], looked, "", None).todo
    assert numbered is any("mark good (1) and bad (0)" in one for one in told)


@pytest.mark.parametrize(("pairs", "kind"), [(1, "answers"), (3, "pairs"), (5, "pairs")])
def test_the_kind_is_that_of_most_rows(pairs: int, kind: str, tmp_path: Path) -> None:
    """One row of a pair among hundreds of answers made a config for dpo, which left all the others out."""
    rows = [{"prompt": "q", "chosen": "a", "rejected": "b"}] * pairs + [{"prompt": "q", "completion": "a"}] * 3
    assert look_at_rows([str(write_rows(tmp_path / "rows.jsonl", rows))], None).kind == kind


@pytest.mark.parametrize(
    ("goal", "adapter", "objective"),
    [
        ("answer corporate questions in full sentences", "lora", "dpo"),
        ("ORPO on our pairs", "lora", "orpo"),
        ("a full fine-tune with simpo", "full", "simpo"),
        ("train all weights, orpo", "full", "orpo"),
    ],
)
def test_a_goal_is_heard_by_its_words(goal: str, adapter: str, objective: str) -> None:
    """`corporate` was ORPO, and full sentences all weights."""
    tree = chosen(goal, kind="pairs").tree
    assert (tree["adapter.type"], tree["train.objective"]) == (adapter, objective)


def test_what_half_the_limit_would_cut_is_told_where_few_rows_are_longer(tmp_path: Path) -> None:
    """One row of thousands of tokens among short ones set the limit, and the memory, without a word of the others."""
    rows: list[dict[str, Any]] = [*make_rows(150), {"instruction": "Count", "output": "one two three " * 300}]
    choice, alike = (
        choose("tiny", None, ["rows.jsonl"], look_at_rows([str(write_rows(tmp_path / "rows.jsonl", some))], None), "", None)
        for some in (rows, rows[:150])
    )
    limit = choice.tree["train.max_tokens"]
    told = re.fullmatch(
        r"the longest row has ([\d,]+) tokens; 1 row of 151 is longer than 64: max_tokens 64 plans memory for rows ([\d.]+) times shorter, "
        r"and cuts ([\d,]+) tokens",
        choice.reasons["train.max_tokens"],
    )
    assert told is not None and limit >= 128 and float(told[2]) == pytest.approx(limit / 64, rel=0.01)
    assert int(told[1].replace(",", "")) - 64 == int(told[3].replace(",", ""))
    assert re.fullmatch(r"the longest row has \d+ tokens", alike.reasons["train.max_tokens"])


def test_the_limit_for_pairs_is_that_of_the_longer_conversation_of_a_pair(tmp_path: Path) -> None:
    """It was that of both together, twice what each needs."""
    file = write_rows(tmp_path / "rows.jsonl", [{"prompt": "Name a tree", "chosen": "birch, or cedar, or fir", "rejected": "no, not I"}])
    longest = look_at_rows([str(file)], None).longest
    assert longest is not None
    codec = plain_codec(load_codec(EMBEDDED["tiny"]))
    (block,) = blocks(str(file))
    shards = [tokenise(block, Rules(max_tokens=limit, wanted="pairs", learns="last"), codec) for limit in (longest, longest - 1)]
    assert [(one.verdicts.kept, one.verdicts.mended) for one in shards] == [(1, 0), (0, 1)]


def test_a_field_that_may_change_what_a_row_means_is_told(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    rows: list[dict[str, Any]] = [{"messages": turns, "system": system} for system in ("s", "another", "")]
    looked = look_at_rows([str(write_rows(tmp_path / "rows.jsonl", rows))], None)
    assert looked.telling == {"system": 1}
    assert any(
        "not used changes what a row means: system (1 row)" in one for one in choose("tiny", None, ["rows.jsonl"], looked, "", None).todo
    )


def test_little_memory_asks_for_no_frozen_weights_where_all_are_trained() -> None:
    assert chosen("little memory").tree["train.frozen"] == "nf4"
    assert "train.frozen" not in chosen("full fine-tune in little memory").tree


@pytest.mark.parametrize(
    ("goal", "target", "asked"),
    [
        ("predict price from volume and open", "price", True),
        ("from volume, predict the price", "price", True),
        ("learn the price", "price", False),
        ("nothing of them", "close", True),
    ],
)
def test_of_several_columns_that_a_goal_names_the_one_to_predict_is_learned(goal: str, target: str, asked: bool) -> None:
    """It was the first of the file's, without a word."""
    rows = LookedAt("table", ("volume", "open", "price", "close"), None, 0, None, None, 9_000)
    choice = choose_table(["table.csv"], rows, goal)
    assert (choice.tree["table.target"], bool(choice.todo)) == (target, asked)


@pytest.mark.parametrize(
    ("name", "params"),
    [("Qwen/Qwen2.5-7B", 7e9), ("mistralai/Mixtral-8x7B-v0.1", 56e9), ("bloom-560m", 560e6), ("Qwen3-30B-A3B", 30e9), ("gpt2", None)],
)
def test_the_size_in_a_name(name: str, params: float | None) -> None:
    assert size_in_name(name) == params
