"""`data check --second-look`: each row's loss under a model, as plain transformers has it, and the rows far from the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import write_rows
from holdfast.base.files import Json
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.judge.rules import checks
from holdfast.data.survey.second_look import FEWEST, look_at
from support import forked
from support.rounding import but_for_rounding

Call = Callable[..., Json]
CARDS = [card for card in checks() if card.second_look]
TINY = EMBEDDED["tiny"]
PLAIN = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
model = model.float()
found = []
for line in open(sys.argv[2]):
    row = json.loads(line)
    turns = [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]
    prompt = tokenizer.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    given, learned = (tokenizer(text, add_special_tokens=False).input_ids for text in (prompt, whole[len(prompt):]))
    labels = torch.tensor([[-100] * len(given) + learned])
    found.append(float(model(input_ids=torch.tensor([given + learned]), labels=labels).loss))
print(json.dumps(found))
"""


def rows_in(folder: Path, count: int = 40) -> Path:
    rows = [{"instruction": f"Name tree number {n % 7}", "output": "the birch stands by the river"} for n in range(count)]
    rows[11] = {"instruction": "Name tree number 3", "output": "of of of of of of of of of of of of"}
    rows[30] = {"instruction": "Say more " * 30, "output": "the birch stands by the river " * 9}
    return write_rows(folder / "rows.jsonl", rows)


def test_losses_are_those_of_plain_transformers(call: Call, tmp_path: Path) -> None:
    file = rows_in(tmp_path)
    answer = call("check", file, "--second-look", "tiny", "--html", tmp_path / "page.html")
    look = answer["second_look"]
    (script := tmp_path / "plain.py").write_text(PLAIN)
    command, env = [sys.executable, str(script), str(TINY), str(file)], os.environ | {forked.FORK: ""}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    plain = json.loads(done.stdout)
    assert (look["rows"], look["model"]) == (40, "tiny")
    assert look["median"] == but_for_rounding(float(np.median(plain)), 100_000)  # the width and mlp of layers, some tokens
    far = [abs(loss - np.median(plain)) for loss in plain]
    assert {odd["line"] - 1 for odd in look["worst"]} >= {int(np.argmax(far))}, "the farthest one is among them"
    for odd in look["worst"]:
        assert odd["loss"] == but_for_rounding(plain[odd["line"] - 1], 100_000)
        example = answer["examples"][odd["reason"]][0]
        assert answer["notes"][odd["reason"]] == look["counts"][odd["reason"]]
        assert example["detail"] in (tmp_path / "page.html").read_text()
    assert answer["kept"] == 40, "nothing is rejected"


def test_what_is_far_on_either_side_is_told() -> None:
    losses = np.random.default_rng(0).normal(3, 0.4, 500)
    losses[[7, 200]] = 0.02, 9.5
    found = np.stack([np.arange(500) // 250, np.arange(500) % 250 + 1, np.full(500, 12), losses], axis=1)
    look = look_at(found, ["a.jsonl", "b.jsonl"], CARDS)
    assert [(odd.reason, odd.file, odd.line, odd.tokens) for odd in look.worst] == [
        ("loss_unusually_high", "a.jsonl", 201, 12),
        ("loss_unusually_low", "a.jsonl", 8, 12),
    ]
    assert look.counts == {"loss_unusually_high": 1, "loss_unusually_low": 1}
    assert look.median == pytest.approx(3, abs=0.1) and look.spread == pytest.approx(0.4, abs=0.1)
    assert "deviations above" in look.worst[0].detail and "mean loss 9.50" in look.worst[0].detail


def test_few_rows_and_equal_rows_say_nothing() -> None:
    few = np.array([[0, n, 5, 3.0 + n] for n in range(FEWEST - 1)])
    assert look_at(few, ["a"], CARDS).as_json() == {"rows": FEWEST - 1, "median": None, "spread": None, "counts": {}, "worst": []}
    equal = np.array([[0, n, 5, 2.0] for n in range(100)] + [[0, 100, 5, 9.0]])
    assert look_at(equal, ["a"], CARDS).worst == ()


def test_no_row_left_is_told(call: Call, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"instruction": "q", "output": ""}] * 3)
    answer = call("check", file, "--second-look", "tiny", code=1)
    assert (answer["second_look"]["rows"], answer["second_look"]["median"], answer["rejected"]) == (0, None, 3)


def test_no_such_model_is_told_before_the_rows_are_read(call: Call, tmp_path: Path) -> None:
    answer = call("check", rows_in(tmp_path), "--second-look", tmp_path / "nothing", code=2)
    assert "nothing" in answer["error"]


def test_a_token_beyond_the_embedding_is_told_with_its_row(call: Call, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    beyond = 5_000_000
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][-1] | {"id": beyond, "content": "zebrafinch", "special": False})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = [{"instruction": f"q {n}", "output": "a zebrafinch" if n == 30 else "birch"} for n in range(40)]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    answer = call("check", file, "--second-look", folder, code=1)
    assert answer["error"].startswith(f"{file}:31 has token ") and "knows" in answer["error"]
