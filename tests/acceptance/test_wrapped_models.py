"""A checkpoint of text and images from rows to exports, which are loaded through the class that its config.json names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import PeftModel

from conftest import holdfast
from holdfast.base_model.folder import read_model
from support.wrapped import KINDS, logits_of, wrapped_folder


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "qwen3_5" else [pytest.mark.long]) for kind in KINDS])
def test_what_was_trained_moves_the_logits_where_people_load_it(assets: SimpleNamespace, kind: str, tmp_path: Path) -> None:
    tokenizer = read_model("tiny").folder
    model = wrapped_folder(tmp_path / "model", kind, 3584, tokenizer)
    tree = {
        "model": str(model),
        "data": {"files": [str(assets.rows)], "held_out": 0.1},
        "train": {"steps": 2, "effective_batch": 4, "lr": 1e-2, "warmup": 0.0, "max_tokens": 96, "threads": 1},
        "evaluate": {"generate": 0},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(tree))
    run = tmp_path / "run"
    done = holdfast("train", tmp_path / "c.yaml", "--run", run)
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    for to in ("adapter", "merged"):
        done = holdfast("export", run, "--to", to, "--out", tmp_path / to)
        assert done.returncode == 0, done.stderr

    card, half = (tmp_path / "adapter" / "README.md").read_text(), "AutoModelForCausalLM loads this"
    assert (half in card, half in said) == (kind == "qwen3_5",) * 2, "told before step 1 and in the card, where it is so"

    def load(folder: Path) -> Any:
        return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)

    base = logits_of(load(model))
    moved = logits_of(PeftModel.from_pretrained(load(model), tmp_path / "adapter")) - base
    assert float(moved.norm() / base.norm()) > 1e-2
    merged = logits_of(load(tmp_path / "merged")) - base
    assert float((merged - moved).norm() / moved.norm()) < 0.2, "merged into bf16, and read in fp32"
