"""`data show`: a row as it is trained on, its tokens one after the other the very text, those that are learned marked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import holdfast, write_rows
from holdfast.cli.main import main

TURNS = [
    {"role": "user", "content": "two and two?"},
    {"role": "assistant", "content": "vier — 四 😀"},
    {"role": "user", "content": "sure?"},
]
ROWS: list[dict[str, Any]] = [
    {"instruction": "Name a tree", "output": "birch"},
    {"messages": [*TURNS, {"role": "assistant", "content": "yes"}]},
    {"prompt": "Once", "completion": " upon a time"},
    {"text": "naïve café"},
    {"prompt": "q", "chosen": "good", "rejected": "bad"},
    {"instruction": "Name a tree", "output": ""},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", ROWS)


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["data", "show", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


LEARNED = {1: ("alpaca", "birch<|im_end|>\n"), 2: ("chat", "vier — 四 😀<|im_end|>\nyes<|im_end|>\n"), 4: ("text", "naïve café")}


@pytest.mark.parametrize("line", LEARNED)
def test_tokens_are_the_text_and_what_is_learned_is_marked(rows: Path, line: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, rows, "--row", line)
    layout, learned = LEARNED[line]
    assert found["format"] == layout and "".join(token["text"] for token in found["tokens"]) == found["text"]
    assert "".join(token["text"] for token in found["tokens"] if token["learned"]).startswith(learned)
    assert all(isinstance(token["id"], int) for token in found["tokens"])


def test_a_config_says_what_is_learned_and_a_pair_has_two_sides(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def config(**train: Any) -> Path:
        data = {"files": [str(rows)], "train_on": train.pop("train_on", "assistant")}
        file = tmp_path / "run.yaml"
        file.write_text(json.dumps({"model": "tiny", "data": data, "train": train}))
        return file

    last = shown(capsys, rows, "--row", 2, "--config", config(train_on="last"))
    assert "".join(token["text"] for token in last["tokens"] if token["learned"]).startswith("yes")
    whole = shown(capsys, rows, "--row", 2, "--config", config(train_on="all"))
    assert all(token["learned"] for token in whole["tokens"])
    pair = shown(capsys, rows, "--row", 5, "--config", config(objective="dpo"))
    assert "good" in pair["text"] and "bad" in pair["rejected"]["text"]
    short = shown(capsys, rows, "--row", 2, "--config", config(max_tokens=36))
    assert len(short["tokens"]) == 36 and any("the end is cut off" in note for note in short["notes"])


def test_a_pair_is_shown_without_a_config_too_with_what_learns_it(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = shown(capsys, rows, "--row", 5)
    assert "good" in pair["text"] and "bad" in pair["rejected"]["text"] and "train.objective dpo" in pair["notes"][-1]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (6, 1, "empty_answer: output is empty"),
        (9, 1, "has 6 rows, none at line 9"),
        (0, 2, "counted from 1"),
    ],
)
def test_what_cannot_be_shown_is_told_in_one_sentence(rows: Path, line: int, code: int, said: str) -> None:
    done = holdfast("data", "show", rows, "--row", line)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr


def test_a_row_is_shown_by_the_chat_template_that_the_config_gives(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({"model": "tiny", "data": {"files": [str(rows)], "chat_template": "gemma"}}))
    assert main(["data", "show", str(rows), "--row", "1", "--config", str(file)]) == 1  # tiny has no token that ends gemma's answers
    assert "the model would never stop" in capsys.readouterr().err
    template = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    file.write_text(json.dumps({"model": "tiny", "data": {"files": [str(rows)], "chat_template": template}}))
    found = shown(capsys, rows, "--row", 1, "--config", file)
    assert found["text"] == "[user] Name a tree<|im_end|>[assistant] birch<|im_end|>"
