"""Rows that hold preferences are recognised, named and refused: an answer marked as bad is never learned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import SHARED, holdfast, make_rows, needs_shared, write_rows
from holdfast.rows.judge.layouts import BadRow, parse_example, prompt_and_answer

TURNS = [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "five"}]
PREFERENCES: list[dict[str, Any]] = [
    {"messages": TURNS, "label": False},
    {"messages": TURNS, "label": True},
    {"messages": TURNS, "kto_tag": "false"},
    {"prompt": "two and two?", "completion": "five", "label": False},
    {"prompt": "two and two?", "completion": "five", "label": "False"},
    {"instruction": "two and two?", "output": "five", "kto_tag": True},
    {"prompt": "two and two?", "chosen": "four", "rejected": "five"},
    {"instruction": "two and two?", "input": "", "chosen": "four", "rejected": "five", "output": "four"},
    {
        "conversations": [{"from": "human", "value": "two?"}],
        "chosen": {"from": "gpt", "value": "2"},
        "rejected": {"from": "gpt", "value": "3"},
    },
    {"chosen": TURNS, "rejected": TURNS},
    {"question": "two and two?", "answer": "four", "rejected_response": "five"},
    {"question": "two and two?", "response_j": "four", "response_k": "five"},
]
OTHERS: list[dict[str, Any]] = [
    {"text": "a sentence", "label": True},
    {"instruction": "two and two?", "output": "four", "label": "arithmetic"},
    {"instruction": "two and two?", "output": "four", "label": 3},
    {"instruction": "two and two?", "output": "four", "rejected": None},
    {"messages": TURNS, "label": None},
]


@pytest.mark.parametrize("row", PREFERENCES)
@pytest.mark.parametrize("layout", ["auto", "alpaca", "chat", "prompt-completion"])
def test_a_preference_is_no_answer_to_learn(row: dict[str, Any], layout: str) -> None:
    assert prompt_and_answer(row) is None, "the quick way leaves it to the thorough one"
    with pytest.raises(BadRow) as bad:
        parse_example(row, layout)
    assert bad.value.reason == "preference_row" and "preferences" in bad.value.detail


@pytest.mark.parametrize("row", OTHERS)
def test_other_columns_of_those_names_reject_nothing(row: dict[str, Any]) -> None:
    assert parse_example(row, "auto").layout


def test_rows_marked_bad_are_refused_before_anything_is_trained(config_of: Callable[..., Path], tmp_path: Path) -> None:
    rows = [{"prompt": row["instruction"], "completion": row["output"], "label": at % 2 == 0} for at, row in enumerate(make_rows(40))]
    file = write_rows(tmp_path / "kto.jsonl", rows)
    done = holdfast("train", config_of(data={"files": [str(file)]}), "--run", tmp_path / "run")
    assert done.returncode == 1
    assert "preference_row 40" in done.stderr and "cannot be trained on yet" in done.stderr
    assert not (tmp_path / "run/attempts").exists()


@needs_shared
@pytest.mark.parametrize("name", ["kto_en_demo.json", "dpo_en_demo.json"])
def test_files_of_other_trainers_are_recognised_to_the_last_row(name: str) -> None:
    for row in json.loads((SHARED / "data/chat" / name).read_text()):
        with pytest.raises(BadRow) as bad:
            parse_example(row, "auto")
        assert bad.value.reason == "preference_row"
