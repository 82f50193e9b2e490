"""A step is a pure function: replayed in a fresh process, it gives the same loss, gradients and weights to the bit."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import holdfast, kill, lines, make_rows, start, wait_until, write_rows
from holdfast.config.load import load_config
from holdfast.config.train import Train
from holdfast.experiments.hosts import Hosts
from holdfast.experiments.investigate import investigate
from holdfast.experiments.replay import TrialChange, new_trial
from holdfast.experiments.trials import Lab
from holdfast.run.folder import RunFolder
from holdfast.run.sampling.step_table import learning_rate
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.supervision.launch import child_environment, trainer_launch
from holdfast.supervision.preparation.prepare import _rate_jump
from holdfast.trainer.jobs.trial import _Stage
from support.rounding import assert_equal_but_for_rounding, but_for_rounding, distance

STEPS = 16  # two epochs of 64 rows in batches of 8


@pytest.fixture(scope="module")
def finished(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs with dropout that kept a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("replay")
    return train(assets, folder, "kept", dropout=0.2)


def train(assets: SimpleNamespace, folder: Path, name: str, **changes: Any) -> Path:
    rows = write_rows(folder / "rows.jsonl", make_rows(64))
    config = folder / f"{name}.yaml"
    expected = changes.pop("expected_steps", STEPS)
    tree = {
        "model": str(assets.model),
        "data": {"files": str(rows), "held_out": 0.0},
        "adapter": {"r": 4, "dropout": changes.pop("dropout", 0.0)},
        "train": {"epochs": 2, "effective_batch": 8, "lr": 1e-3, "max_tokens": 96, "micro_batch_tokens": 160, "threads": 1} | changes,
        "save": {"every": 1, "keep": 100},
    }
    config.write_text(json.dumps(tree))
    done = holdfast("train", config, "--run", folder / name, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == expected
    return folder / name


def trial(run: Path, step: int, *more: object) -> dict[str, Any]:
    done = holdfast("trial", run, "--step", step, "--json", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("step", random.Random(7).sample(range(1, STEPS + 1), 3))
def test_a_replayed_step_gives_the_same_bits(finished: Path, step: int) -> None:
    outcome = trial(finished, step)
    row = lines(finished / "steps.jsonl")[step - 1]
    weights = finished / "checkpoints" / f"step-{step:08d}" / "adapter_model.safetensors"
    assert (outcome["loss"], outcome["grad_norm"]) == (row["loss"], row["grad_norm"])
    assert outcome["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert outcome["recomputed"] == 0
    assert outcome["gradients_sha256"] == trial(finished, step)["gradients_sha256"]


def test_a_step_without_its_checkpoint_is_reached_by_computing_those_before_it(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, symlinks=True)
    for step in range(2, 6):
        shutil.rmtree(copy / "checkpoints" / f"step-{step:08d}")
    outcome = trial(copy, 6)
    assert outcome["recomputed"] == 4
    assert outcome["loss"] == lines(finished / "steps.jsonl")[5]["loss"]


def test_a_changed_setting_changes_the_bits_and_is_recorded(finished: Path) -> None:
    plain, eager = trial(finished, 5), trial(finished, 5, "--set", "attention=eager")
    assert eager["gradients_sha256"] != plain["gradients_sha256"]
    assert eager["loss"] == but_for_rounding(plain["loss"], TERMS)
    assert eager["changed"]["settings"] == {"attention": "eager"}


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        ("attenton=eager", "attenton: no such setting; did you mean attention?"),
        ("attention=flash", "attention: input should be 'eager' or 'sdpa'"),
        ("threads=true", "threads: input should be a valid integer"),
        ("steps=3", "a trial can change device, attention,"),
        ("attention", "a trial can change device, attention,"),
    ],
)
def test_a_trial_of_a_setting_that_is_none_is_refused(finished: Path, pair: str, says: str) -> None:
    done = holdfast("trial", finished, "--step", 5, "--set", pair)
    assert done.returncode == 2 and f"--set {pair}: {says}" in done.stderr, done.stderr


def test_settings_of_another_version_are_told_and_ignored_and_wrong_values_refused(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, symlinks=True)
    before = summary(copy)["artifact_sha256"]
    entry = {"from_step": 3, "settings": {"sharpness": 7}, "reason": "a newer version"}
    with (copy / "timeline.jsonl").open("a") as timeline:
        timeline.write(json.dumps(entry) + "\n")
    again = holdfast("train", copy / "config.yaml", "--run", copy, "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["artifact_sha256"] == before
    assert "timeline.jsonl: this version has no setting sharpness; ignored" in again.stderr
    with (copy / "timeline.jsonl").open("a") as timeline:
        timeline.write(json.dumps(entry | {"settings": {"attention": "flash"}}) + "\n")
    refused = holdfast("train", copy / "config.yaml", "--run", copy)
    assert refused.returncode == 1 and "timeline.jsonl: attention: input should be 'eager' or 'sdpa'" in refused.stderr
    exported = holdfast("export", copy, "--to", "adapter", "--out", tmp_path / "out")
    assert exported.returncode == 1 and "timeline.jsonl: attention: input should be" in exported.stderr


def test_a_plan_of_another_version_is_told_of_and_one_that_is_none_refused(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, symlinks=True)
    plan = json.loads((copy / "plan.json").read_text())
    (copy / "plan.json").write_text(json.dumps(plan | {"quantum": 7}))
    again = holdfast("train", copy / "config.yaml", "--run", copy)
    assert again.returncode == 0 and "plan.json: this version knows nothing of quantum in a plan; ignored" in again.stdout
    for wrong in ({"peak_bytes": -1}, {"rows": None}, {"micro_batch_tokens": "many"}):
        (copy / "plan.json").write_text(json.dumps(plan | wrong))
        refused = holdfast("train", copy / "config.yaml", "--run", copy)
        assert refused.returncode == 1 and "plan.json is missing or damaged" in refused.stderr, refused.stderr
        assert "Traceback" not in refused.stderr
    shutil.copy(finished / "plan.json", copy / "plan.json")
    (copy / "timeline.jsonl").unlink()
    without = holdfast("train", copy / "config.yaml", "--run", copy)
    price = f"begin again with --run DIR, another folder: that computes {len(lines(copy / 'steps.jsonl'))} steps once more, which took "
    assert price in refused.stderr and price in without.stderr and without.returncode == 1


def training_of(run: Path, step: int) -> Any:
    """The state before `step`, built in this process."""
    from holdfast.trainer.common.job import open_job
    from holdfast.trainer.state.restore import find_state
    from holdfast.trainer.step.training_state import build

    job = open_job(RunFolder(run), 1, run, {})
    training = build(job, job.settings(step))
    found = find_state(RunFolder(run), [], limit=step - 1)
    if found.snapshot:
        training.restore(found.snapshot)
    return training


def gradients_of(training: Any, step: int, samples: list[int], budget: int) -> tuple[dict[str, torch.Tensor], int]:
    from holdfast.trainer.step.step import compute_gradients

    computed = compute_gradients(training.task, training.optimizer, step, samples, budget, lambda *_: 1.0)
    return {name: p.grad.clone() * computed.labels for name, p in training.optimizer.parameters.items()}, computed.labels


TERMS = 64 * 96 * 16  # tokens of a step, and some of the width: what an element of a gradient sums up


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def test_a_subset_of_the_samples_draws_the_same_masks(finished: Path) -> None:
    """Gradients of the parts add up to the gradient of the whole, which they cannot when a single mask differs."""
    training = training_of(finished, 6)
    samples = training.samples(6)
    whole, labels = gradients_of(training, 6, samples, 160)
    first, labels_1 = gradients_of(training, 6, samples[:3], 160)
    second, labels_2 = gradients_of(training, 6, samples[3:], 40)
    assert labels == labels_1 + labels_2
    assert_equal_but_for_rounding(flat({name: first[name] + second[name] for name in whole}), flat(whole), TERMS)
    other, _ = gradients_of(training, 7, samples, 160)
    assert distance(flat(other), flat(whole)) > 1e-2, "another step must draw other masks"


def test_sixty_four_times_one_sample_equals_one_batch_of_all(assets: SimpleNamespace, tmp_path: Path) -> None:
    """Extreme accumulation: every micro-batch holds one sample, and neither loss nor gradient can tell."""
    run = train(assets, tmp_path, "ones", dropout=0.2, effective_batch=64, micro_batch_tokens=1, expected_steps=2)
    assert json.loads((run / "plan.json").read_text())["accumulation"] == 64
    training = training_of(run, 2)
    samples = training.samples(2)
    assert [len(training.task.batches(samples, budget)) for budget in (1, 64 * 96)] == [64, 1]
    ones, labels = gradients_of(training, 2, samples, 1)
    whole, labels_of_whole = gradients_of(training, 2, samples, 64 * 96)
    assert labels == labels_of_whole
    assert_equal_but_for_rounding(flat(ones), flat(whole), TERMS)
    together = trial(run, 2, "--set", f"micro_batch_tokens={64 * 96}")
    assert lines(run / "steps.jsonl")[1]["loss"] == but_for_rounding(together["loss"], TERMS)


def test_another_seed_gives_another_run(finished: Path, assets: SimpleNamespace, tmp_path: Path) -> None:
    other = train(assets, tmp_path, "seed", dropout=0.2, seed=1)
    assert summary(other)["adapter_sha256"] != summary(finished)["adapter_sha256"]
    assert lines(other / "steps.jsonl")[0]["samples"] != lines(finished / "steps.jsonl")[0]["samples"]


def summary(run: Path) -> dict[str, Any]:
    return json.loads((run / "summary.json").read_text())


def test_the_run_equals_a_plain_peft_loop(assets: SimpleNamespace, tmp_path: Path) -> None:
    """The reference below knows nothing of holdfast but which samples a step sees."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, get_cosine_schedule_with_warmup

    run = train(assets, tmp_path, "plain", warmup=0)
    rows = make_rows(64)
    tokenizer = AutoTokenizer.from_pretrained(assets.model)
    model = AutoModelForCausalLM.from_pretrained(assets.model, dtype=torch.float32)
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    schedule = get_cosine_schedule_with_warmup(optimizer, 0, STEPS)
    losses = []
    for step in lines(run / "steps.jsonl"):
        total, labels = 0.0, 0
        for number in step["samples"]:
            turns = [{"role": "user", "content": rows[number]["instruction"]}, {"role": "assistant", "content": rows[number]["output"]}]
            prompt = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, tokenize=False)
            text = tokenizer.apply_chat_template(turns, tokenize=False)
            given = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            ids = torch.tensor([given + tokenizer(text[len(prompt) :], add_special_tokens=False)["input_ids"]])
            logits = model(input_ids=ids).logits[0, len(given) - 1 : -1]
            total = total + torch.nn.functional.cross_entropy(logits, ids[0, len(given) :], reduction="sum")
            labels += len(ids[0]) - len(given)
        loss = total / labels
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(), schedule.step(), optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == but_for_rounding([row["loss"] for row in lines(run / "steps.jsonl")], TERMS, condition=STEPS)
    ours = load_file(run / "adapter" / "adapter_model.safetensors")
    theirs = {name.replace(".default", ""): value for name, value in model.state_dict().items() if "lora_" in name}
    assert ours.keys() == theirs.keys()
    # an element whose gradient is all rounding moves by the whole rate under Adam, with either sign: few do, so the whole is compared
    assert distance(flat(ours), flat(theirs)) < 1e-3


def test_the_artifact_is_what_plain_peft_loads(finished: Path, assets: SimpleNamespace) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(assets.model), finished / "adapter")
    assert model.peft_config["default"].r == 4
    assert (
        summary(finished)["adapter_sha256"]
        == hashlib.sha256((finished / "artifact" / "adapter_model.safetensors").read_bytes()).hexdigest()
    )


def test_an_extended_run_goes_on_where_it_ended(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(train={"steps": 4})
    run = tmp_path / "r"
    assert holdfast("train", config, "--run", run).returncode == 0
    refused = holdfast("train", config, "train.steps=7", "--run", run)
    assert refused.returncode == 2
    assert "train.steps: 4 -> 7" in refused.stderr
    extended = holdfast("train", config, "train.steps=7", "--run", run, "--extend")
    assert extended.returncode == 0, extended.stderr
    assert "extended from 4 to 7 steps; learning rate" in extended.stdout and "at step 5" in extended.stdout
    rows, train = lines(run / "steps.jsonl"), load_config(config).train
    assert [row["step"] for row in rows] == list(range(1, 8))
    ends = [4] * 4 + [7] * 3
    rates = [learning_rate(step, end, train.lr, train.schedule, train.warmup) for step, end in enumerate(ends, 1)]
    assert [row["lr"] for row in rows] == rates, "of the steps so far those of the shorter run, from then on those of the longer one"
    assert lines(run / "timeline.jsonl")[1] == {
        "from_step": 5,
        "settings": {"steps": 7, "samples": 56, "patience_from": 5},
        "reason": "extended from 4 steps",
    }


def test_what_extending_does_to_the_rate_is_told_as_steps_will_have_it() -> None:
    """After a rollback at half the rate, or a rate that was asked for on the way, the rates told were the first one's."""
    train = Train(steps=4, lr=1e-3, warmup=0.0)
    told = _rate_jump(train, 2, 4, 8, 0.5)
    rates = [0.5 * learning_rate(3, steps, 1e-3, "cosine", 0.0) for steps in (4, 8)]
    assert told.startswith(f"{rates[0]:.2e} -> {rates[1]:.2e} at step 3,")


def test_a_run_is_never_extended_to_a_shorter_end(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config, run = config_of(train={"steps": 4000}), tmp_path / "r"
    child = start("train", config, "--run", run)
    wait_until(lambda: (run / "steps.jsonl").exists() and bool(lines(run / "steps.jsonl")))
    child.send_signal(2)
    child.communicate()
    before = (run / "timeline.jsonl").read_bytes()
    refused = holdfast("train", config, "train.steps=3000", "--run", run, "--extend", "--json")
    assert refused.returncode == 2
    assert "end after 4000 steps, the config ends at 3000" in refused.stderr and "holdfast stop" in refused.stderr
    assert json.loads(refused.stdout)["status"] == "refused"
    assert (run / "timeline.jsonl").read_bytes() == before


def test_a_run_extended_behind_a_small_last_step_leaves_no_row_out(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config, run = config_of(train={"steps": None, "effective_batch": 50}), tmp_path / "r"
    for epochs in (1, 2, 3):
        done = holdfast("train", config, f"train.epochs={epochs}", "--run", run, *(["--extend"] if epochs > 1 else []))
        assert done.returncode == 0, done.stderr
    steps = [step["samples"] for step in lines(run / "steps.jsonl")]
    drawn = [row for samples in steps for row in samples]
    rows = len(set(drawn))
    assert [len(samples) for samples in steps] == [50, 50, rows - 100] * 3 and rows % 50
    assert all(len(set(drawn[epoch * rows : (epoch + 1) * rows])) == rows for epoch in range(3)), "each epoch has every row"


# ---- the processes of trials


@contextmanager
def lab_of(run: Path, step: int) -> Iterator[tuple[Lab, Hosts]]:
    folder = RunFolder(run)
    settings = settings_at(read_timeline(folder.timeline_file), step)
    environment = child_environment(trainer_launch(folder).env)
    with Hosts(folder, step, environment, 60.0, print, lambda: False) as hosts:
        yield Lab(folder, step, settings, hosts.replay, 60), hosts


def test_a_trial_whose_process_dies_before_it_begins_is_asked_again(finished: Path) -> None:
    """The process is gone between two trials, or dies with the next one already in its pipe: neither is a failure of the step."""
    with lab_of(finished, 5) as (lab, hosts):
        assert not lab.fails(TrialChange())
        [idle] = hosts.living.values()
        kill(idle.child.pid)
        idle.child.wait()
        assert not lab.fails(TrialChange(), anew=True)
        [asked] = hosts.living.values()
        os.kill(asked.child.pid, signal.SIGSTOP)
        threading.Timer(0.5, lambda: kill(asked.child.pid)).start()
        assert not lab.fails(TrialChange(), anew=True)
        assert (lab.trials, lab.processes, lab.verdict("transient", "").processes) == (3, 3, 3)
    tried = [json.loads(file.read_text()) for file in sorted(finished.glob("trials/*/trial.json"))[-3:]]
    assert [one["process"] for one in tried] == [1, 2, 3] and all(one["begun"] for one in tried)


def test_a_step_that_cannot_be_reached_is_no_failure_of_its_rows(finished: Path, tmp_path: Path) -> None:
    """Steps before it have to be computed again, and one of them is not finite this time: the lab has no answer."""
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy, symlinks=True)
    shutil.rmtree(copy / "checkpoints" / "step-00000004")
    (copy / "f.yaml").write_text(json.dumps([{"when": {"step": 4}, "effect": "nan_loss"}]))
    launch = copy / "attempts" / "001" / "launch.json"
    launch.write_text(json.dumps(json.loads(launch.read_text()) | {"faults": str(copy / "f.yaml")}))
    with lab_of(copy, 5) as (lab, _):
        verdict = investigate(lab, (), 2, [])
    assert (verdict.kind, verdict.trials) == ("uncertain", 1)
    assert verdict.evidence == "a trial could not be begun: not reached: step 4, before it, is not finite"


def test_a_trial_with_other_threads_leaves_none_of_them_behind(finished: Path) -> None:
    stage = _Stage(RunFolder(finished))
    for settings, threads in (({}, 1), ({"threads": 2}, 2), ({}, 1)):
        assert stage.replay(new_trial(RunFolder(finished), 5, TrialChange(settings=settings)))
        assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("loss", "norm", "damaged", "said"),
    [
        (None, None, None, "not finite: loss and gradient norm"),
        (2.5, float("inf"), None, "not finite: gradient norm"),
        (2.5, 1.0, "layer 3 of the moments", "not finite: layer 3 of the moments"),
    ],
)
def test_a_trial_that_is_not_finite_says_what_of_it(loss: float | None, norm: float | None, damaged: str | None, said: str) -> None:
    from holdfast.experiments.replay import failure

    assert failure({"ending": "finished", "loss": loss, "grad_norm": norm, "damaged": damaged}) == said
