"""What a resume is held against: the checkpoint that the Trainer went on from, and the numbers in it, whatever they are."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from holdfast.callback.packed import Packer
from holdfast.callback.proof import differing
from holdfast.callback.snapshot import CallbackSnapshots, CannotSnapshot

pytest.importorskip("transformers")
hf: Any = importlib.import_module("holdfast.callback.hf")


def saved(folder: Path, model: torch.nn.Module) -> Path:
    folder.mkdir(parents=True)
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    return folder


def model_of(value: float) -> torch.nn.Linear:
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.constant_(model.weight, value)
    return model


@pytest.mark.parametrize(
    ("in_file", "held", "wrong"), [(math.nan, math.nan, 0), (math.inf, math.inf, 0), (1.0, math.nan, 1), (math.nan, 1.0, 1), (1.0, 2.0, 1)]
)
def test_a_weight_that_was_saved_as_no_number_is_as_it_was_saved(in_file: float, held: float, wrong: int, tmp_path: Path) -> None:
    found = differing(model_of(held), saved(tmp_path / "checkpoint-1", model_of(in_file)))
    assert found == (["weight"] * wrong, 1)


def test_weights_whose_values_are_cut_among_processes_are_not_compared(tmp_path: Path) -> None:
    """DeepSpeed's third stage leaves an empty tensor in each parameter."""
    model = model_of(1.0)
    checkpoint = saved(tmp_path / "checkpoint-1", model)
    model.weight.data = torch.empty(0)
    assert differing(model, checkpoint) is None


@pytest.mark.parametrize(("given", "ends"), [("elsewhere/checkpoint-4", False), ("out/checkpoint-4", True), (None, False)])
def test_a_resume_is_held_against_the_checkpoint_that_was_gone_on_from(
    given: str | None, ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that went on from another folder's checkpoint was ended where its own folder had one of that number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_RESUME", str(tmp_path / "out/checkpoint-4"))  # of another Trainer of the script
    saved(tmp_path / "elsewhere/checkpoint-4", model_of(1.0))
    saved(tmp_path / "out/checkpoint-4", model_of(2.0))
    args = SimpleNamespace(output_dir="out", world_size=2, resume_from_checkpoint=None)
    state = SimpleNamespace(global_step=4, max_steps=8)

    def inner_training_loop(resume_from_checkpoint: str | None = None) -> None:
        hf.HoldfastCallback().on_train_begin(args, state, None, model=model_of(1.0))

    if not ends:
        return inner_training_loop(given)
    with pytest.raises(SystemExit):
        inner_training_loop(given)
    return None


@pytest.mark.parametrize(("frozen", "fits"), [(0, True), (1 << 20, False)])
def test_frozen_weights_that_are_saved_count_for_the_memory_of_a_snapshot(
    frozen: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.callback.snapshot.available_bytes", lambda: 5 << 20)  # a fifth of it may be taken

    class Model(torch.nn.Linear):
        def save_pretrained(self, folder: Path) -> None:
            save_file(dict(self.state_dict()), folder / "model.safetensors")

    model = Model(3, 1)
    model.register_parameter("base", torch.nn.Parameter(torch.zeros(frozen // 4), requires_grad=False))
    snapshots = CallbackSnapshots(Packer(tmp_path / "state", "run"), tmp_path / "pattern")
    if fits:
        return snapshots.begin(model, None, {})
    with pytest.raises(CannotSnapshot, match=r"1 MiB of weights .* frozen ones included"):
        snapshots.begin(model, None, {})
    return None
