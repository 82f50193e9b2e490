"""What a run takes of the simulated card beside the trace of its own step: never more than a hundredth beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import events, holdfast, lines
from holdfast.base_model.folder import read_description
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import load_tokens
from holdfast.planning.memory.demand import Demand
from holdfast.planning.tracing import tracer
from holdfast.run.folder import RunFolder
from simulated import card
from support.shipped import make_family

pytestmark = card.needed

TRAIN = {"steps": 3, "attention": "eager", "precision": "bf16", "effective_batch": 16, "micro_batch_tokens": 8192}
HOW = {"layers": None, "curve": False, "plain_attention": False}


def test_a_start_with_all_weights_holds_no_more_than_its_steps(config_of: Callable[..., Path], tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2}
    asked = yaml.safe_load(config_of().read_text())
    model = make_family("llama", Path(asked["model"]), tmp_path / "model", **shape)
    folder = tmp_path / "run"
    config = config_of(model=str(model), train=TRAIN, adapter={"type": "full"}, run={"standby": False})
    done = holdfast("train", config, "--run", folder, env=card.environment())
    assert done.returncode == 0, done.stderr
    compared = events(folder, "memory_compared")[-1]
    with steps_traced(folder) as (traced, _):
        most = max(step.peak for step in traced)
    assert 0.99 * compared["measured_bytes"] <= most <= 1.01 * compared["measured_bytes"], "another set of gradients is an eighth more"
    assert compared["planned_bytes"] >= 0.9 * most, "the closed form is near enough where there is room for much more"


def test_a_run_whose_kernels_are_left_out_takes_what_its_step_was_traced_to(config_of: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = holdfast("train", config_of(train=TRAIN, adapter={"r": 4, "dropout": 0.1}), "--run", folder, env=card.environment())
    assert done.returncode == 0, done.stderr
    changes = [entry["settings"] for entry in lines(RunFolder(folder).timeline_file)]
    assert changes[-1]["fused"] is False, "the simulated card has no driver to compile for"
    with steps_traced(folder) as (steps, fused):
        hoped = fused()
    measured = events(folder, "memory_compared")[-1]["measured_bytes"]
    assert 0.99 * measured <= max(step.peak for step in steps) <= 1.01 * measured
    assert hoped.bytes["logits"] == steps[0].bytes["logits"] > 0, "a start may leave the loss's kernel out"


@pytest.mark.long
@pytest.mark.parametrize("double", [False, True])
def test_a_run_in_4_bits_takes_what_its_step_was_traced_to(config_of: Callable[..., Path], tmp_path: Path, double: bool) -> None:
    pytest.importorskip("bitsandbytes")
    shape = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
    asked = yaml.safe_load(config_of().read_text())
    model = make_family("llama", Path(asked["model"]), tmp_path / "model", **shape)
    folder, train = tmp_path / "run", TRAIN | {"frozen": "nf4", "double_quant": double}
    config = config_of(model=str(model), train=train, adapter={"r": 4, "dropout": 0.1}, run={"standby": False})
    done = holdfast("train", config, "--run", folder, env=card.environment(bitsandbytes=True))
    assert done.returncode == 0, done.stderr
    measured = events(folder, "memory_compared")[-1]["measured_bytes"]
    with steps_traced(folder) as (steps, _):
        most = max(step.peak for step in steps)
    assert 0.99 * measured <= most <= 1.03 * measured, most / measured


@contextmanager
def steps_traced(folder: Path) -> Iterator[tuple[list[Demand], Callable[[], Demand]]]:
    """Yield what each step of a run is traced to with the settings it ended with, and what its first one would be with fused kernels."""
    run, rows, chosen = RunFolder(folder), load_tokens(RunFolder(folder).data_file), {}
    for entry in lines(run.timeline_file):
        chosen |= entry["settings"]
    with tracer() as child:

        def traced(samples: list[int], **changed: Any) -> Demand:
            given = [rows.row(number) for number in samples]
            labels = sum(int((learned[1:] & 1).sum()) for _, learned in given)
            settings = Settings.model_validate(chosen | changed)
            return child.demand(run.config(), read_description(run.config().model), settings, [len(ids) for ids, _ in given], labels, HOW)

        samples = [step["samples"] for step in run.steps()]
        yield [traced(one) for one in samples], lambda: traced(samples[0], fused=True)
