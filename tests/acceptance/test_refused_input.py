"""Input that only the trainer can see through: named, told once, exit code 1, and never tried again. Rows at the model's limits."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import events, holdfast, lines, make_rows, settings_with, write_rows
from holdfast.base.errors import Stop
from holdfast.base.files import append_line, sha256, write_json
from holdfast.base.locks import hold
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_at
from holdfast.run.types import Ending, FailureReport
from holdfast.supervision.preparation.lock import held
from holdfast.supervision.preparation.prepare import open_run
from holdfast.supervision.runs import is_run
from holdfast.supervision.training.run_to_end import diagnosed
from holdfast.terminal.run_view import Terminal
from holdfast.trainer.common.refuse import Refusal, broken_weights, refuse_broken_weights
from holdfast.trainer.model.load import load_base

Write = Callable[..., Path]


@pytest.fixture
def model(assets: SimpleNamespace, tmp_path: Path) -> Path:
    shutil.copytree(assets.model, tmp_path / "model")
    return tmp_path / "model"


def test_broken_base_weights_are_named_before_the_first_step(config_of: Write, model: Path, tmp_path: Path) -> None:
    file, run = model / "model.safetensors", tmp_path / "run"
    whole = file.read_bytes()
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4:6] = float("nan")
    tensors["model.norm.weight"][7] = float("-inf")
    save_file(tensors, file, {"format": "pt"})
    done = holdfast("train", config_of(model=str(model)), "--run", run, "--json")
    assert done.returncode == 1, done.stderr
    assert f"weights of {model} hold NaN or Inf:" in done.stderr
    assert "model.layers.1.mlp.up_proj.weight: 2 of 2,048 values, the first at [3, 4]" in done.stderr
    assert "model.norm.weight: 1 of 32 values, the first at [7]" in done.stderr
    assert "Traceback" not in done.stderr and "gave up" not in done.stderr
    assert len(events(run, "attempt_started")) == 1, "what cannot change is not tried again"
    assert not (run / "steps.jsonl").exists()
    assert json.loads(done.stdout)["incidents"][0]["cause"] == "nonfinite_numerics"
    file.write_bytes(whole)
    assert holdfast("train", config_of(model=str(model)), "--run", run).returncode == 0, "mended, rerun the same command to resume"


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (["q_prj"], "adapter.targets is ['q_prj']: Target modules {'q_prj'} not found in the base model."),
        (["norm"], "adapter.targets is ['norm']: Target module Qwen2RMSNorm("),
    ],
)
def test_targets_that_take_no_adapter_are_refused_at_the_first_attempt(
    config_of: Write, tmp_path: Path, targets: list[str], says: str
) -> None:
    run = tmp_path / "a run"
    config = config_of(adapter={"targets": targets})
    done = holdfast("train", config, "--run", run)
    assert done.returncode == 1, done.stderr
    assert says in done.stderr and "-> this model has down_proj, embed_tokens, gate_proj, k_proj, lm_head," in done.stderr
    assert "Traceback" not in done.stderr and [path.name for path in (run / "attempts").iterdir()] == ["001"]
    found = json.loads(holdfast("diagnose", run, "--json").stdout)
    assert says in found["explanation"] and [remedy["what"][:20] for remedy in found["remedies"]] == ["this model has down_"]
    again = holdfast("train", config, "adapter.targets=all-linear", "--run", run)
    assert again.returncode == 2 and f"-> it has no committed step yet: remove it (rm -r {shlex.quote(str(run))}), or " in again.stderr


@pytest.mark.parametrize(
    ("kind", "says", "hint"),
    [
        ("qwen99", "holds a model of type 'qwen99', which transformers", "pip install --upgrade transformers"),
        ("t5", "holds a model of type 't5', which transformers ", "give a causal language model"),
    ],
)
def test_a_model_that_transformers_does_not_take_is_refused_at_the_first_attempt(
    config_of: Write, model: Path, tmp_path: Path, kind: str, says: str, hint: str
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": kind, "architectures": None}))
    done = holdfast("train", config_of(model=str(model)), "--run", tmp_path / "run")
    assert done.returncode == 1, done.stderr
    assert says in done.stderr and f"\n  -> {hint}" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in (tmp_path / "run/attempts").iterdir()] == ["001"]


SETTINGS = settings_with(attention="eager")


@pytest.mark.parametrize(
    ("changed", "cause", "says"),
    [
        (
            {"intermediate_size": 80},
            "checkpoint_model_mismatch",
            "other shapes than config.json describes: model.layers.0.mlp.down_proj.weight is [32, 64], not [32, 80];",
        ),
        ({"vocab_size": 500}, "checkpoint_model_mismatch", "model.embed_tokens.weight is [400, 32], not [500, 32]"),
        (
            {"tie_word_embeddings": False},
            "checkpoint_model_mismatch",
            "lack tensors of the model that config.json describes: lm_head.weight",
        ),
        (
            {"num_hidden_layers": 3, "layer_types": None},
            "checkpoint_model_mismatch",
            "lack tensors of the model that config.json describes: model.layers.2.input_layernorm.weight;",
        ),
        (
            {"num_hidden_layers": 1, "layer_types": None, "tie_word_embeddings": False},
            "checkpoint_model_mismatch",
            "lm_head.weight, and have others without a place in it: model.layers.1.input_layernorm.weight; ",
        ),
        ({"hidden_act": "qwelu"}, "checkpoint_unreadable", "cannot be loaded by transformers"),
        ({"num_attention_heads": None}, "checkpoint_unreadable", "cannot be loaded by transformers"),
    ],
)
def test_weights_that_are_not_those_of_the_config_are_refused_with_the_tensor(
    model: Path, changed: dict[str, Any], cause: str, says: str
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | changed))
    asked = Config.model_validate({"model": str(model), "data": {"files": "x"}})
    with pytest.raises(Refusal) as refusal:
        load_base(asked, SETTINGS, torch.device("cpu"))
    assert refusal.value.cause.startswith(cause) and says in str(refusal.value)
    assert "from one download" in refusal.value.hint


def test_weights_that_are_there_under_other_names_are_not_called_those_of_another_download(model: Path) -> None:
    file = model / "model.safetensors"
    save_file({f"inner.model.{name}": tensor.clone() for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(Refusal, match="lack tensors") as refusal:
        load_base(Config.model_validate({"model": str(model), "data": {"files": "x"}}), SETTINGS, torch.device("cpu"))
    assert "under other names" in refusal.value.hint and "download" not in refusal.value.hint


def test_tensors_without_a_place_in_the_model_are_noted(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1, "layer_types": None}))
    _, notes = load_base(Config.model_validate({"model": str(model), "data": {"files": "x"}}), SETTINGS, torch.device("cpu"))
    assert any("have no place in the model that config.json describes and are left out: model.layers.1." in note for note in notes)


def test_a_run_that_is_given_up_is_told_with_the_words_of_diagnose(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    attempt = run.attempt(1)
    attempt.mkdir(parents=True)
    lines = ["Traceback (most recent call last):", "RuntimeError: Error(s) in loading state_dict for Qwen2ForCausalLM:"]
    (attempt / "output.log").write_text("\n".join(lines) + "\n")
    failure_report = FailureReport(1, Ending("error", 1), None, "start", (), tuple(lines), 0, 0, 0.0, None, None)
    write_json(attempt / "wreck.json", failure_report.as_json() | {"words": "ended with exit code 1"})
    told = diagnosed(run)
    assert told[0].startswith("checkpoint_model_mismatch (") and "Checkpoint and model have different tensors." in told[0]
    assert told[1].startswith("1. ") and told[-1] == f"all of it: holdfast diagnose {shlex.quote(str(run.path))}"
    (attempt / "output.log").write_text("nothing that anybody knows\n")
    assert diagnosed(run) == []


@pytest.mark.parametrize("targets", [["q_proj", "embed_tokens"], ["lm_head", "embed_tokens"], r".*layers\.0\..*[qk]_proj"])
def test_adapters_of_embeddings_the_output_layer_and_by_pattern(config_of: Write, tmp_path: Path, targets: Any) -> None:
    run = tmp_path / "run"
    done = holdfast("train", config_of(adapter={"targets": targets}, data={"held_out": 0.2}, train={"lr": 0.02}), "--run", run, "--json")
    assert done.returncode == 0, done.stderr
    names = {name.split(".lora_")[0].rpartition(".")[2] for name in load_file(run / "adapter/adapter_model.safetensors")}
    assert names == ({"q_proj", "k_proj"} if isinstance(targets, str) else set(targets))
    loss = json.loads(done.stdout)["loss"]
    assert loss["eval_tuned"] < loss["eval_base"], "plain PEFT loads it, and it does what was learned"
    assert json.loads((run / "plan.json").read_text())["params"]["trainable"] == sum(
        tensor.numel() for tensor in load_file(run / "adapter/adapter_model.safetensors").values()
    )


def test_weights_that_are_trained_are_none_of_the_base_models() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[0].requires_grad_(False)
    with torch.no_grad():
        for layer in model:
            layer.weight.fill_(1e30)
    assert [told.partition(":")[0] for told in broken_weights(model, 1e9)[0]] == ["0.weight", "1.weight"]
    assert [told.partition(":")[0] for told in broken_weights(model, 1e9, frozen_alone=True)[0]] == ["0.weight"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_weights_are_still_weights(dtype: torch.dtype) -> None:
    layer = torch.nn.Linear(4, 4).to(dtype)
    with torch.no_grad():
        layer.weight.fill_(torch.finfo(dtype).max)
        layer.bias.fill_(torch.finfo(dtype).min)
    refuse_broken_weights(layer, "here")
    layer.bias.data[2] = float("inf")
    with pytest.raises(Refusal, match=r"1 of 2 weights of here hold NaN or Inf:\n  bias: 1 of 4 values, the first at \[2\]"):
        refuse_broken_weights(layer, "here")


def test_a_row_whose_every_label_is_masked_never_reaches_a_step(config_of: Write, tmp_path: Path) -> None:
    rows = make_rows(30)
    rows[4]["instruction"] = "x " * 200
    file = write_rows(tmp_path / "rows.jsonl", rows)
    run = tmp_path / "run"
    done = holdfast("train", config_of(data={"files": str(file)}, train={"epochs": 1, "steps": None}), "--run", run)
    assert done.returncode == 0, done.stderr
    assert [(reject["line"], reject["reason"]) for reject in lines(run / "rejects.jsonl")] == [(5, "all_labels_masked")]
    assert all(row["labels"] > 0 for row in lines(run / "steps.jsonl"))


def test_a_step_with_nothing_to_learn_has_its_own_ending(config_of: Write, tmp_path: Path) -> None:
    """It cannot come from the data check, so the run's own data file is forged, and its hash with it."""
    config, run, faults = config_of(train={"steps": 2}, run={"trials": 0}), tmp_path / "run", tmp_path / "f.yaml"
    faults.write_text(json.dumps([{"when": {"step": 1}, "effect": "raise"}]))
    assert holdfast("train", config, "--run", run, "--faults", faults).returncode == 3
    from safetensors import safe_open
    from safetensors.numpy import save_file as save

    with safe_open(run / "data.safetensors", framework="np") as handle:
        arrays, facts = {name: handle.get_tensor(name) for name in handle.keys()}, handle.metadata()  # noqa: SIM118
    save(arrays | {"learned": np.zeros_like(arrays["learned"])}, run / "data.safetensors", facts)
    plan = json.loads((run / "plan.json").read_text())
    (run / "plan.json").write_text(json.dumps(plan | {"data_sha256": sha256(run / "data.safetensors")}))
    done = holdfast("train", config, "--run", run, "--json")
    assert done.returncode == 1, done.stderr
    assert "step 1 has nothing to learn: all labels of its 8 samples are masked" in done.stderr
    assert "rows.jsonl:" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["incidents"][-1]["cause"] == "no_learning_signal"
    assert not (run / "steps.jsonl").exists()


def test_a_row_longer_than_the_models_positions_is_cut_there_and_told(config_of: Write, model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 48}))
    rows = make_rows(30)
    rows[6]["output"] = "amber-37 " * 60
    rows[9]["instruction"] = "amber 37 " * 60
    run = tmp_path / "run"
    done = holdfast("train", config_of(model=str(model), data={"files": str(write_rows(tmp_path / "r.jsonl", rows))}), "--run", run)
    assert done.returncode == 0, done.stderr
    assert "rows may have 48 tokens, all positions the model has, not train.max_tokens = 96" in done.stdout
    assert events(run, "rows_limited")[0]["positions"] == 48
    data = json.loads((run / "data.json").read_text())
    assert data["tokens"]["max"] == data["max_tokens"] == 48
    assert data["mended"] >= 1 and data["by_reason"]["answer_cut"] == data["mended"]
    reject = next(reject for reject in lines(run / "rejects.jsonl") if reject["line"] == 10)
    assert "the answer begins after max_tokens = 48" in reject["detail"]


def test_a_token_beyond_the_embedding_names_its_row(config_of: Write, model: Path, tmp_path: Path) -> None:
    """Tokens are in the tokenizer and not in the model, as after tokens were added without resizing."""
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    size = max([*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]) + 1
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    extra = {
        "id": size,
        "content": "<extra>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    tokenizer["added_tokens"].append(extra)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    rows = make_rows(30)
    rows[16]["output"] += "<extra><extra>"
    file = write_rows(tmp_path / "rows.jsonl", rows)
    done = holdfast("train", config_of(model=str(model), data={"files": str(file)}), "--run", tmp_path / "run")
    assert done.returncode == 1, done.stderr
    assert f"{file}:17: the tokenizer gives token {size}, the model's embedding has {size} (2 such tokens in all)" in done.stderr
    assert "Traceback" not in done.stderr


def quiet() -> Terminal:
    return Terminal(to_stderr=True, quiet=True)


@pytest.mark.parametrize("wrong", ["start", "rows", "model", "evaluate"])
def test_a_run_that_is_refused_before_it_began_is_no_run(config_of: Write, model: Path, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "no-adapter").mkdir()
    sections: dict[str, Any] = {
        "start": {"adapter": {"start": str(tmp_path / "no-adapter")}},
        "rows": {"data": {"files": [str(write_rows(tmp_path / "bad.jsonl", [{"id": 1}]))]}},
        "model": {"model": str(model)},
        "evaluate": {"evaluate": {"every": 2}},
    }
    if wrong == "model":
        (model / "model.safetensors").write_bytes(b"version https://git-lfs")
    config, path = load_config(config_of(**sections[wrong])), tmp_path / "runs/run"
    for _ in range(2):  # the second time, nothing of the first is in the way
        with pytest.raises(Stop), held(path) as (folder, _lock):
            open_run(folder, config, False, quiet())
        left = [file.name for file in path.iterdir()] if path.exists() else []
        assert left == (["rejects.jsonl"] if wrong == "rows" else [])
        assert not is_run(path)
    with held(path) as (folder, _lock):
        open_run(folder, load_config(config_of()), False, quiet())
    assert folder.config_file.exists() and is_run(path)


def test_a_run_that_began_keeps_all_it_has_when_a_command_is_refused(config_of: Write, tmp_path: Path) -> None:
    path = tmp_path / "run"
    with held(path) as (folder, _lock):
        open_run(folder, load_config(config_of()), False, quiet())
    before = sorted(path.iterdir())
    with pytest.raises(Stop, match="belongs to another config") as refused, held(path) as (folder, _lock):
        open_run(folder, load_config(config_of(train={"seed": 5})), False, quiet())
    assert sorted(path.iterdir()) == before and "adapter.start" not in refused.value.hint
    (folder.checkpoints / "step-00000003").mkdir(parents=True)
    with pytest.raises(Stop) as refused, held(path) as (folder, _lock):
        open_run(folder, load_config(config_of(train={"seed": 5})), False, quiet())
    assert f"adapter.start={shlex.quote(f'{path}/checkpoints/step-00000003')} --run DIR" in refused.value.hint


def test_settings_that_change_no_weight_may_change_while_a_run_is_not_finished(config_of: Write, tmp_path: Path) -> None:
    path = tmp_path / "run"
    changed = {"evaluate": {"generate": 3, "max_new_tokens": 9}, "save": {"every": 2, "keep": 7}}
    with held(path) as (folder, _lock):
        open_run(folder, load_config(config_of()), False, quiet())
        open_run(folder, load_config(config_of(**changed)), False, quiet())
        taken = folder.config()
        assert (taken.evaluate.generate, taken.evaluate.max_new_tokens, taken.save.every, taken.save.keep) == (3, 9, 2, 7)
        assert "evaluate.generate: 8 -> 3" in events(path, "config_changed")[0]["changes"]
        with pytest.raises(Stop, match=r"train\.seed"):
            open_run(folder, load_config(config_of(train={"lr": 0.5, "seed": 3}, **changed)), False, quiet())
        assert not events(path, "learning_rate_changed")
        with pytest.raises(Stop, match=r"save\.snapshot_dir"):
            open_run(folder, load_config(config_of(evaluate=changed["evaluate"], save={"snapshot_dir": str(tmp_path)})), False, quiet())
        write_json(folder.summary_file, {"status": "finished"})
        with pytest.raises(Stop, match=r"evaluate\.generate"):
            open_run(folder, load_config(config_of(evaluate={"generate": 1})), False, quiet())


def test_a_run_that_is_not_finished_may_be_evaluated_on_the_way_from_now_on(config_of: Write, tmp_path: Path) -> None:
    path, asked = tmp_path / "run", {"every": 3, "patience": 2}

    def opened(held_out: float = 0.25, **evaluate: int) -> Config:
        with held(path) as (folder, _lock):
            open_run(folder, load_config(config_of(evaluate=evaluate, data={"held_out": held_out})), False, quiet())
            return folder.config()

    opened()
    with hold(path / "trainer.lock", wait=False), pytest.raises(Stop, match=r"starts: evaluate\.every: none -> 3") as refused:
        opened(**asked)
    assert refused.value.hint == f"holdfast stop {shlex.quote(str(path))}, then rerun the same command"
    with pytest.raises(Stop, match=r"evaluate\.rows"):
        opened(**asked, rows=1)
    assert opened().evaluate.every is None, "a refused command changes nothing"
    assert opened(**asked).evaluate.patience == 2
    assert opened().evaluate.every is None
    shutil.rmtree(path)
    opened(held_out=0.0)
    with pytest.raises(Stop, match="no row is held out"):
        opened(held_out=0.0, **asked)


def test_the_learning_rate_may_change_from_the_next_step_on(config_of: Write, tmp_path: Path) -> None:
    path = tmp_path / "run"

    def opened(rate: float, **how: float) -> Config:
        with held(path) as (folder, _lock):
            return open_run(folder, load_config(config_of(train={"lr": rate}, run=how)), False, quiet())

    def factor_at(step: int) -> float:
        return settings_at(read_timeline(path / "timeline.jsonl"), step).lr_factor

    opened(1e-3)
    append_line(path / "steps.jsonl", {"step": 4, "attempt": 1, "loss": 1.0, "time": 1.0, "seconds": 1.0})
    opened(5e-4)
    assert [factor_at(step) for step in (4, 5, 9)] == [1.0, 0.5, 0.5], "the steps so far are replayed as they were"
    again = opened(5e-4, hang_s=77)
    assert len(events(path, "learning_rate_changed")) == 1, "the same command resumes, and changes nothing"
    assert (again.train.lr, again.run.hang_s) == (1e-3, 77), "what trains stands in RUN/config.yaml, how it is watched in the command's"
    with pytest.raises(Stop, match=r"train\.lr"), hold(path / "trainer.lock", wait=False):
        opened(1e-3)  # a trainer is alive
    opened(1e-3)
    assert factor_at(5) == 1.0 and RunFolder(path).config().train.lr == 1e-3
    with held(path) as (folder, _lock):
        open_run(folder, load_config(config_of(train={"lr": 7e-4, "steps": 20})), True, quiet())
    assert factor_at(5) == pytest.approx(0.7)
    assert (folder.config().train.lr, folder.config().train.steps) == (1e-3, 20), "the rate of the steps so far stays known"
    add_entry(path / "timeline.jsonl", Entry(5, {"lr_factor": 0.35}, "half the rate after a rollback"))
    with held(path) as (folder, _lock):
        open_run(folder, load_config(config_of(train={"lr": 1.4e-3, "steps": 20})), False, quiet())
    assert factor_at(5) == pytest.approx(0.7), "half of what is asked for now"
    write_json(path / "summary.json", {"status": "finished"})
    with pytest.raises(Stop, match=r"train\.lr"):
        opened(2e-3)


def test_rows_that_are_lost_and_come_out_otherwise_are_told_without_a_guess_why(config_of: Write, tmp_path: Path) -> None:
    """The files may be as they were, and this version read more of their rows than the one that began the run."""
    path, rows = tmp_path / "run", write_rows(tmp_path / "rows.jsonl", make_rows(24))

    def opened() -> None:
        with held(path) as (folder, _lock):
            open_run(folder, load_config(config_of(data={"files": [str(rows)]})), False, quiet())

    opened()
    (path / "data.safetensors").unlink()
    write_rows(rows, make_rows(23))
    with pytest.raises(Stop, match=r"data\.safetensors is gone or damaged, and rows .* are not those that the run began with") as stop:
        opened()
    assert "go on with the version that began the run" in str(stop.value.hint)
    write_rows(rows, make_rows(24))
    opened()
