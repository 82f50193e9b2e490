"""A scalar head: its loss is that of transformers' own class with PEFT, its step as pure as any, its run ends with what others load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from conftest import holdfast, lines, write_rows
from holdfast.config.config import Config
from holdfast.data.token_set.token_set import sequences
from holdfast.trainer.tasks.text import rewarded as rewarded_part
from holdfast.trainer.tasks.text.rewarded import _score, load_rewarder
from support.architectures import TERMS
from support.pairs import pairs_of
from support.rounding import but_for_rounding
from support.stand import Stand, announced_and_asked, model_folder

SCORES = 10  # the size of the scores whose exponential a loss is

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"dropout": 0.1},
    "embeddings too": {"modules_to_save": ["embed_tokens"]},
    "dora": {"type": "dora"},
    "adalora": {"type": "adalora"},
    "ia3": {"type": "ia3"},
}


def stand_of(model: Path, kind: str = "lora", **settings: Any) -> Stand:
    return Stand(model, tokens=pairs_of(), settings=settings, train={"objective": "reward", "lr": 0.02}, adapter=KINDS[kind])


def scores(model: Path, stand: Stand, folder: Path) -> torch.Tensor:
    """By transformers and PEFT, each sequence alone: [pairs, 2]."""
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(stand.artifact.to_bytes())
    (folder / "adapter_config.json").write_text(json.dumps(stand.task.form.config))
    base = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1, dtype=torch.float32)
    own: Any = PeftModel.from_pretrained(base, folder).eval()
    rows = [[torch.from_numpy(ids.astype("int64"))[None] for (ids, _), _ in sequences(*stand.task.tokens.row(at))] for at in stand.rows]
    with torch.no_grad():
        return torch.tensor([[float(own(input_ids=ids).logits[0, 0]) for ids in row] for row in rows])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_transformers_own_class_and_a_state_is_all_that_later_steps_need(tmp_path: Path, kind: str) -> None:
    ends = {int(ids[-1]) for at in range(5) for (ids, _), _ in sequences(*pairs_of().row(at))}
    model = model_folder(tmp_path / "model", dtype=torch.bfloat16, pad_token_id=ends.pop())  # where a row ends with it, it is passed over
    stand = stand_of(model, kind)
    assert stand.task.prove() == ({}, "")
    losses = [stand.step(step) for step in range(1, 7)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(7, 9)]
    again = stand_of(model, kind)
    again.restore(kept)
    assert [again.step(step) for step in range(7, 9)] == losses[6:] and again.saved() == stand.saved()
    assert losses[-1] < losses[0]
    whole, split = stand.compute(9), stand.compute(9, budget=30)
    assert split.loss == but_for_rounding(whole.loss, TERMS, condition=SCORES)
    stand.task.model.eval()
    computed, found = stand.compute(9), scores(model, stand, tmp_path / "artifact")
    apart = found[:, 0] - found[:, 1]
    assert computed.loss == but_for_rounding(float(-F.logsigmoid(apart).mean()), TERMS, condition=SCORES)
    assert computed.measured["pair_accuracy"] == int((apart > 0).sum())
    assert computed.measured["margin"] == but_for_rounding(float(apart.sum()), TERMS)


@pytest.mark.parametrize("frozen", ["nf4", "int8"])
def test_what_a_run_held_in_fewer_bits_scores_held_out_pairs_in_those(tmp_path: Path, frozen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("bitsandbytes")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    model = model_folder(tmp_path / "model", hidden_size=128, intermediate_size=256, head_dim=32)
    stand = stand_of(model, frozen=frozen)
    for step in range(1, 4):
        stand.step(step)
    stand.task.model.eval()
    margin = stand.compute(4).measured["margin"]
    whole = scores(model, stand, tmp_path / "artifact")
    (kept,) = (tmp_path / "cache").rglob("quantised/*.safetensors")
    before = kept.stat().st_mtime_ns
    run: Any = SimpleNamespace(adapter=tmp_path / "artifact")
    loaded = load_rewarder(stand.config, stand.settings, run)
    rows = [[_score(loaded, ids) for (ids, _), _ in sequences(*stand.task.tokens.row(at))] for at in stand.rows]
    found = sum(better - worse for better, worse in rows)
    assert found == but_for_rounding(margin, TERMS, condition=SCORES)
    assert abs(float((whole[:, 0] - whole[:, 1]).sum()) - margin) > 100 * abs(found - margin), "of whole weights it is another"
    held = [weight for name, weight in loaded.named_parameters() if name.endswith("_proj.base_layer.weight")]
    assert held and not any(weight.is_floating_point() for weight in held) and kept.stat().st_mtime_ns == before


def test_close_answers_have_other_scores_where_a_run_computed_in_16_bits(tmp_path: Path) -> None:
    """The head was rounded to 16 bits with the model: pairs got the same score, and counted as in the wrong order."""
    model = model_folder(tmp_path / "model", dtype=torch.bfloat16)
    stand = stand_of(model, dtype="bf16")
    stand.step(1)
    scores(model, stand, tmp_path / "artifact")
    run: Any = SimpleNamespace(adapter=tmp_path / "artifact")
    loaded = load_rewarder(stand.config, stand.settings, run)
    found = [_score(loaded, ids) for at in stand.rows for (ids, _), _ in sequences(*stand.task.tokens.row(at))]
    assert len(found) == 10 and not any(value == float(torch.tensor(value).bfloat16()) for value in found)
    head = loaded.base_model.model.score.modules_to_save["default"].weight
    assert torch.equal(head, stand.task.trained[next(name for name in stand.task.trained if "score" in name)])


def test_the_loss_at_the_end_is_the_one_on_the_way_where_some_pairs_may_be_the_wrong_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(
        model_folder(tmp_path / "model"),
        tokens=pairs_of(),
        train={"objective": "reward", "lr": 0.05},
        preference={"label_smoothing": 0.3},
    )
    for step in range(1, 5):
        stand.step(step)
    found = scores(tmp_path / "model", stand, tmp_path / "artifact")
    monkeypatch.setattr(rewarded_part, "refuse_changed", lambda *_: None)
    monkeypatch.setattr(rewarded_part, "load_rewarder", lambda *_: None)
    monkeypatch.setattr(rewarded_part, "load_tokens", lambda _: stand.task.tokens)
    monkeypatch.setattr(rewarded_part, "split", lambda *_: ([], np.arange(len(found))))
    left = iter(found.flatten().tolist())
    monkeypatch.setattr(rewarded_part, "_score", lambda *_: next(left))
    run: Any = SimpleNamespace(data_file=None)
    told = rewarded_part.rewarded(run, stand.config, stand.settings, lambda _: None)
    stand.task.model.eval()
    assert told["eval_tuned"] == but_for_rounding(stand.compute(9).loss, TERMS, condition=SCORES)


def test_rows_that_are_padded_are_read_at_their_own_ends(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    assert stand_of(model, packing=False).compute(1).loss == but_for_rounding(stand_of(model).compute(1).loss, TERMS, condition=SCORES)


@pytest.mark.parametrize(
    ("adapter", "said"),
    [({"type": "full"}, "type full has no place"), ({"type": "prompt"}, "type prompt"), ({"start": "/x"}, "start has none")],
)
def test_where_there_is_no_place_for_a_head_the_config_is_refused(adapter: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"model": "tiny", "data": {"files": "x"}, "train": {"objective": "reward"}, "adapter": adapter})


def test_a_run_that_is_killed_ends_with_a_head_that_orders_held_out_pairs_and_is_not_exported(
    config_of: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [{"prompt": f"Join {at}", "chosen": f"amber-{at}", "rejected": f"no {at}"} for at in range(40)]
    config = config_of(
        "reward",
        data={"files": [str(write_rows(tmp_path / "rows.jsonl", rows))], "held_out": 0.2},
        train={"objective": "reward", "steps": 6, "lr": 0.01},
        evaluate={"every": 3},
    )
    (tmp_path / "f.yaml").write_text(json.dumps([{"name": "k", "when": {"attempt": 1, "step": 3, "phase": "backward"}, "effect": "kill"}]))
    done = holdfast("train", config, "--run", tmp_path / "run", "--faults", tmp_path / "f.yaml", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["attempts"] == 2 and summary["metrics"]["pair_accuracy"] == 1.0 and "100.0% of 8 pairs" in summary["says"]
    assert summary["loss"]["eval_base"] is None and summary["loss"]["eval_tuned"] < 0.6
    assert summary["evaluations"]["last_loss"] == but_for_rounding(summary["loss"]["eval_tuned"], TERMS, condition=SCORES)
    assert lines(tmp_path / "run/steps.jsonl")[-1]["pair_accuracy"] == 1.0
    assert announced_and_asked(tmp_path / "run") == (8, 8)
    refused = holdfast("export", tmp_path / "run", "--to", "merged", "--out", tmp_path / "out")
    assert refused.returncode == 1 and "scores answers" in refused.stderr
