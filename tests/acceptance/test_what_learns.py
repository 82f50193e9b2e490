"""A mixture of experts from rows to its card: what learns is said, the router does not, and no server is recommended that ignores it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from conftest import holdfast
from holdfast.base_model.folder import read_model
from support.architectures import ARCHITECTURES, GQA
from support.stand import model_folder

SIZES = GQA | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8, "vocab_size": 3584}


def test_what_learns_is_said_before_step_one_in_the_plan_and_in_the_summary(
    assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "experts", lambda: transformers.Qwen3MoeConfig(**SIZES))
    model = model_folder(tmp_path / "model", "experts", torch.bfloat16)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).write_bytes((read_model("tiny").folder / name).read_bytes())
    tree = {
        "model": str(model),
        "data": {"files": [str(assets.rows)], "held_out": 0.1},
        "train": {"steps": 2, "effective_batch": 4, "max_tokens": 96, "threads": 1},
        "evaluate": {"generate": 0},
    }
    (tmp_path / "c.yaml").write_text(json.dumps(tree))
    run = tmp_path / "run"
    done = holdfast("train", tmp_path / "c.yaml", "--run", run)
    assert done.returncode == 0, done.stderr
    before = (done.stdout + done.stderr).partition("step 1")[0]
    assert "what learns: attention " in before and "as it was stays: router" in before
    assert "do not serve an adapter's part in this model's stacked experts" in before
    plan, summary = json.loads((run / "plan.json").read_text()), json.loads((run / "summary.json").read_text())
    learns = {kind: one["parameters"] for kind, one in plan["learns"].items()}
    assert summary["learns"] == plan["learns"] and [*learns] == ["attention", "mlp", "experts", "router", "embeddings", "towers", "other"]
    assert {kind for kind, size in learns.items() if size} == {"attention", "experts"} and sum(learns.values()) == plan["params"][
        "trainable"
    ]
    shares = {kind: one["share_of_kind"] for kind, one in plan["learns"].items()}
    assert (shares["experts"], shares["router"], shares["towers"], shares["mlp"]) == (1.0, 0.0, None, None)
    done = holdfast("check", tmp_path / "c.yaml", "--only", "start", "--json")
    assert json.loads(done.stdout)["start"]["learns"] == plan["learns"], "the start, of the built model, says what the plan said"
    done = holdfast("export", run, "--to", "adapter", "--out", tmp_path / "adapter")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "adapter" / "README.md").read_text()
    done = holdfast("export", run, "--to", "merged", "--out", tmp_path / "merged")
    assert "--to merged" in card and done.returncode == 0, done.stderr
    assert "vllm serve" not in card and "do not serve an adapter's part in this model's stacked experts" in card
