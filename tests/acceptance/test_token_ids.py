"""Token ids of training are those that AutoTokenizer gives, or the run stops before its first step and says both."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import holdfast
from holdfast.base_model.folder import read_model
from support.shipped import make_family


@pytest.mark.parametrize(("tokenizer_class", "stops"), [("GemmaTokenizer", True), ("TokenizersBackend", False)])
def test_a_tokenizer_that_transformers_reads_in_another_way_stops_the_run_before_step_one(
    assets: SimpleNamespace, tmp_path: Path, tokenizer_class: str, stops: bool
) -> None:
    model = make_family("llama", read_model("tiny").folder, tmp_path / "model")
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"tokenizer_class": tokenizer_class}))
    tree = {
        "model": str(model),
        "data": {"files": [str(assets.rows)]},
        "train": {"steps": 1, "effective_batch": 2, "max_tokens": 96, "threads": 1},
        "evaluate": {"generate": 0},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(tree))
    done = holdfast("train", tmp_path / "c.yaml", "--run", tmp_path / "run")
    steps = tmp_path / "run" / "steps.jsonl"
    if not stops:
        assert done.returncode == 0, done.stderr
        return
    assert done.returncode == 1 and not (steps.exists() and steps.read_text()), done.stderr
    assert "tokenizer.json says [" in done.stderr and "AutoTokenizer says [" in done.stderr
    assert "\n  -> where tokenizer.json is right, set tokenizer_class to TokenizersBackend" in done.stderr
