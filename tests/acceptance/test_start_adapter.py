"""A run can start from an existing adapter; one that does not fit, or is damaged, is refused before training with every difference."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import load_file, save_file

from conftest import holdfast, lines, settings_with, write_rows
from holdfast.config.config import Config
from holdfast.data.token_set.token_set import TokenSet, load_tokens, sequences, split
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.trainer.common.job import open_job
from holdfast.trainer.step.training_state import build
from holdfast.trainer.tasks.text.reference import StoredValues
from holdfast.trainer.tasks.text.task import TextTask
from support.rounding import but_for_rounding

Write = Callable[..., Path]
NAME = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight"


@pytest.fixture(scope="module")
def first(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of four steps: r = 4, alpha = 12, on all linear layers."""
    folder = tmp_path_factory.mktemp("first")
    tree = {
        "model": str(assets.model),
        "data": {"files": [str(assets.rows)], "held_out": 0.1},
        "adapter": {"r": 4, "alpha": 12},
        "train": {"steps": 4, "effective_batch": 8, "lr": 1e-2, "max_tokens": 96, "threads": 1},
        "evaluate": {"generate": 0},
    }
    (folder / "c.yaml").write_text(json.dumps(tree))
    done = holdfast("train", folder / "c.yaml", "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def adapter(first: Path, tmp_path: Path) -> Path:
    shutil.copytree(first / "adapter", tmp_path / "adapter")
    return tmp_path / "adapter"


def config_from(config_of: Write, start: Path, **more: Any) -> Path:
    """The tests' config without its own r, so that the adapter settles it."""
    file = config_of(adapter={"start": str(start), **more})
    tree = file.read_text().replace("  r: 4\n", "" if "r" not in more else f"  r: {more['r']}\n")
    file.write_text(tree)
    return file


def refused(code: int, config: Path, run: Path, *says: str) -> None:
    done = holdfast("train", config, "--run", run)
    assert done.returncode == code, done.stderr
    for text in says:
        assert text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (run / "attempts").exists(), "nothing was trained"


def change(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def change_tensor(adapter: Path, name: str, value: torch.Tensor | None) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors |= {name: value} if value is not None else {}
    save_file({key: tensor for key, tensor in tensors.items() if value is not None or key != name}, file)


@pytest.mark.parametrize("kind", ["run folder", "PEFT folder"])
def test_a_run_begins_where_the_adapter_ended(config_of: Write, first: Path, tmp_path: Path, kind: str) -> None:
    """The first step's loss is the one the finished adapter has on these rows, and a kill does not lead back to it."""
    start = first if kind == "run folder" else first / "adapter"
    run, faults = tmp_path / "run", tmp_path / "f.yaml"
    faults.write_text(
        json.dumps([{"when": {"attempt": 1, "step": 1}, "effect": "kill"}, {"when": {"attempt": 2, "step": 6}, "effect": "kill"}])
    )
    done = holdfast("train", config_from(config_of, start, dropout=0.0), "--run", run, "--faults", faults, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads((run / "plan.json").read_text())["start_adapter"]
    assert (plan["sha256"], plan["r"], plan["alpha"]) == (json.loads((first / "summary.json").read_text())["adapter_sha256"], 4, 12.0)
    assert f"start: {first / 'adapter'} (sha256 {plan['sha256'][:16]}), so r = 4, alpha = 12" in done.stderr
    saved = json.loads((run / "adapter/adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"]) == (4, 12.0)
    loss = lines(run / "steps.jsonl")[0]["loss"]
    fresh = holdfast("train", config_of("fresh", adapter={"dropout": 0.0}, train={"steps": 1}), "--run", tmp_path / "fresh")
    assert fresh.returncode == 0, fresh.stderr
    assert loss == but_for_rounding(tuned_loss(first, run), 10_000)  # labels times width and layers, about
    assert loss < lines(tmp_path / "fresh/steps.jsonl")[0]["loss"] - 0.01, "better than a fresh adapter"


def test_preferences_are_held_against_the_adapter_the_run_begins_from(config_of: Write, first: Path, tmp_path: Path) -> None:
    """As TRL and the papers have it: the reference of DPO on top of an SFT adapter is that adapter. Held against plain PEFT."""
    rows = [{"prompt": f"Join {at} and {at % 7}", "chosen": f"amber-{at} is right", "rejected": f"no {at * 3}"} for at in range(30)]
    config = config_of(
        adapter={"start": str(first), "dropout": 0.0},
        data={"files": [str(write_rows(tmp_path / "pairs.jsonl", rows))], "held_out": 0.2},
        train={"objective": "dpo", "steps": 3, "lr": 5e-3, "effective_batch": 8},
        preference={"beta": 0.5},
        evaluate={"generate": 0, "every": 3},
    )
    config.write_text(config.read_text().replace("  r: 4\n", ""))
    faults = tmp_path / "f.yaml"
    faults.write_text(json.dumps([{"when": {"attempt": 1, "step": 2, "phase": "backward"}, "effect": "kill"}]))
    done = holdfast("train", config, "--run", tmp_path / "run", "--json", "--faults", faults)
    assert done.returncode == 0, done.stderr
    assert "it is the reference of train.objective dpo" in done.stderr
    summary, steps = json.loads(done.stdout), lines(tmp_path / "run/steps.jsonl")
    assert steps[0]["loss"] == but_for_rounding(math.log(2), 10_000), "nothing has moved yet"
    assert summary["loss"]["reference"] == "start adapter" and "(start adapter)" in (tmp_path / "run/report.html").read_text()
    tokens = load_tokens(tmp_path / "run/data.safetensors")
    start, tuned = plain(first / "adapter", first), plain(tmp_path / "run/adapter", first)
    seen = {row for step in steps for row in step["samples"]}
    (file,) = (tmp_path / "run").glob("reference-*.bin")
    kept = StoredValues(file, len(tokens))
    for folder, trial in ((tmp_path / "run/trials/001", True), (tmp_path / "run/attempts/002", False)):
        job = open_job(RunFolder(tmp_path / "run"), 1, folder, {})
        assert build(job, job.settings(3)).task.compared.trial is trial
    for row in sorted(seen):
        assert not kept.missing([row], 2)
        assert kept.get([row], 2)[0].tolist() == [but_for_rounding(value, 10_000) for value in logps(start, tokens, row)[0]]
    held = sorted(
        set(range(len(tokens)))
        - set(split(tokens, Config.model_validate(yaml.safe_load((tmp_path / "run/config.yaml").read_text())).data, 0)[0].tolist())
    )
    margins, apart = [], []
    for row in held:
        (a, b), before = logps(start, tokens, row)
        (c, d), after = logps(tuned, tokens, row)
        margins.append(0.5 * ((c - a) - (d - b)))
        apart += [(p.exp() * (p - q)).sum(-1) for p, q in zip(after, before, strict=True)]
    evaluation = json.loads((tmp_path / "run/evaluation.json").read_text())
    wanted = float(-F.logsigmoid(torch.tensor(margins)).mean())
    assert evaluation["eval_tuned"] == but_for_rounding(wanted, 10_000) == lines(tmp_path / "run/evaluations.jsonl")[-1]["loss"]
    assert evaluation["eval_base"] == but_for_rounding(math.log(2), 10_000)
    assert evaluation["metrics"]["kl_to_reference"] == but_for_rounding(float(torch.cat(apart).mean()), 10_000, condition=100)

    plan = json.loads((tmp_path / "run/plan.json").read_text())
    assert plan["start_adapter"].pop("is_reference")
    (tmp_path / "run/plan.json").write_text(json.dumps(plan))
    run = RunFolder(tmp_path / "run")
    older: Any = TextTask.build(run, run.config(), settings_of_process(read_timeline(run.timeline_file)), torch.device("cpu"))
    assert older.compared.start is None, "a run that began with the base as its reference goes on with it"


def plain(adapter: Path, first: Path) -> Any:
    """An adapter as plain PEFT loads it."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(json.loads((first / "adapter/adapter_config.json").read_text())["base_model_name_or_path"])
    return PeftModel.from_pretrained(base, str(adapter)).eval()


def logps(model: Any, tokens: TokenSet, row: int) -> tuple[list[float], list[torch.Tensor]]:
    """(log-probability, log-probabilities of all tokens at the answer's places) of each of a row's answers."""
    sums, every = [], []
    for (ids, learned), _ in sequences(*tokens.row(row)):
        numbers = torch.from_numpy(ids.astype(np.int64))[None]
        with torch.no_grad():
            each = F.log_softmax(model(input_ids=numbers).logits[0].double(), -1)[:-1]
        at = torch.from_numpy(learned[1:].astype(bool))
        sums.append(float(each.gather(1, numbers[0, 1:, None])[:, 0][at].sum()))
        every.append(each[at])
    return sums, every


def tuned_loss(first: Path, run: Path) -> float:
    """Loss of `first`'s adapter on the samples of the first step of `run`, by plain PEFT."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from holdfast.trainer.tasks.text.evaluation import mean_loss

    base = AutoModelForCausalLM.from_pretrained(json.loads((first / "adapter/adapter_config.json").read_text())["base_model_name_or_path"])
    model = PeftModel.from_pretrained(base, str(first / "adapter")).eval()
    samples = lines(run / "steps.jsonl")[0]["samples"]
    settings = settings_with(own_head=True, micro_batch_tokens=10_000)
    return mean_loss(model, load_tokens(run / "data.safetensors"), samples, settings, torch.device("cpu"))


def test_the_same_command_goes_on_after_the_adapter_has_changed(config_of: Write, adapter: Path, tmp_path: Path) -> None:
    """The run has its own copy, checked against the plan."""
    config, run, faults = config_from(config_of, adapter), tmp_path / "run", tmp_path / "f.yaml"
    faults.write_text(json.dumps([{"when": {"step": 1}, "effect": "raise"}]))
    assert holdfast("train", config, "run.trials=0", "--run", run, "--faults", faults).returncode == 3
    change(adapter, r=2)
    change_tensor(adapter, NAME, torch.zeros(1, 1))
    (run / "start_adapter.safetensors").rename(tmp_path / "aside")
    (run / "start_adapter.safetensors").write_bytes((adapter / "adapter_model.safetensors").read_bytes())
    said = holdfast("train", config, "--run", run)
    assert said.returncode == 1 and "it is not the file that the plan names" in said.stderr, said.stderr
    assert "Traceback" not in said.stderr
    (tmp_path / "aside").replace(run / "start_adapter.safetensors")
    assert holdfast("train", config, "--run", run).returncode == 0


def test_a_folder_that_is_missing_or_holds_no_adapter(config_of: Write, adapter: Path, first: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    missing = config_from(config_of, tmp_path / "adaptor")
    refused(2, missing, run, f"adapter.start: {tmp_path}/adaptor: no such folder; did you mean {adapter}?")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused(2, config_from(config_of, adapter), run, "holds no adapter: adapter_model.safetensors missing (it has adapter_model.bin")
    unfinished = tmp_path / "unfinished"
    shutil.copytree(first, unfinished, symlinks=True, ignore=shutil.ignore_patterns("adapter"))
    refused(2, config_from(config_of, unfinished), run, f"the run is not finished, its states are in {unfinished}/checkpoints")


def test_what_the_user_says_otherwise_is_told_at_once(config_of: Write, adapter: Path, tmp_path: Path) -> None:
    config = config_from(config_of, adapter, r=8, alpha=16, targets=["q_proj"])
    differing = ("adapter.r: 8 in the config, 4 in the adapter", "adapter.alpha: 16.0 in the config, 12.0 in the adapter")
    refused(2, config, tmp_path / "run", *differing, "adapter.targets: ['q_proj'] in the config, ['down_proj', 'gate_proj', ")


def test_another_base_model_is_told_with_its_shapes(config_of: Write, adapter: Path, assets: SimpleNamespace, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(assets.model, tmp_path / "wider")
    shape = AutoConfig.from_pretrained(assets.model)
    shape.intermediate_size, shape.num_hidden_layers, shape.layer_types = 96, 3, ["full_attention"] * 3
    AutoModelForCausalLM.from_config(shape).save_pretrained(tmp_path / "wider")
    config = config_from(config_of, adapter)
    config.write_text(yaml.safe_dump(yaml.safe_load(config.read_text()) | {"model": str(tmp_path / "wider")}))
    says = ("6 differences", "model.layers.0.mlp.gate_proj is made for 64 x 32, the base model has 96 x 32", "and 1 more")
    refused(1, config, tmp_path / "run", f"does not fit {tmp_path / 'wider'}", *says)


def test_an_adapter_that_is_not_on_every_layer_the_config_names(config_of: Write, adapter: Path, tmp_path: Path) -> None:
    for side in "AB":
        change_tensor(adapter, NAME.replace("lora_B", f"lora_{side}"), None)
    says = "model.layers.1.mlp.down_proj of the base model has no part in the adapter"
    refused(1, config_from(config_of, adapter), tmp_path / "a", "(1 difference)", says)
    change(adapter, target_modules=["q_proj"])
    refused(1, config_from(config_of, adapter, targets="all-linear"), tmp_path / "b", says)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"r": 16}, "has rank 4 and 4, adapter_config.json says r = 16"),
        ({"use_dora": True}, "has no lora_magnitude_vector, a part of DoRA"),
        ({"peft_type": "LOHA"}, "is not an adapter that can be trained further (peft_type: 'LOHA')"),
        ({"use_dora": True, "use_rslora": True}, "trained further (peft_type: 'LORA', use_rslora: True, use_dora: True)"),
        ({"r": None}, "names no r and lora_alpha"),
    ],
)
def test_an_adapter_config_that_does_not_describe_its_weights(
    config_of: Write, adapter: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    change(adapter, **changes)
    refused(1, config_from(config_of, adapter), tmp_path / "run", says)


def test_a_damaged_adapter_file(config_of: Write, adapter: Path, tmp_path: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    whole = file.read_bytes()
    damages = [(whole[:-10], "is damaged: it has"), (b"\xff" * 8 + whole[8:], "is damaged"), (whole[:8] + b"x" + whole[9:], "is not JSON")]
    damages.append((len(b'{"a": 1}').to_bytes(8, "little") + b'{"a": 1}', "its header describes no tensors"))
    for number, (data, says) in enumerate(damages):
        file.write_bytes(data)
        refused(1, config_from(config_of, adapter), tmp_path / f"run-{number}", says)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_an_adapter_with_a_nan_is_named_by_tensor(config_of: Write, adapter: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = {name: tensor.to(dtype) for name, tensor in load_file(file).items()}
    tensors[NAME][5, 2], tensors[NAME][7, 1] = float("nan"), float("-inf")
    save_file(tensors, file)
    size = tensors[NAME].numel()
    refused(
        1,
        config_from(config_of, adapter),
        tmp_path / "run",
        f"{NAME}: 2 of {size:,} values, the first at [5, 2]",
        "NaN or Inf in 1 of 28 tensors",
    )
