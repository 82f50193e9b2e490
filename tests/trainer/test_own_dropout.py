"""Dropout that a model's own code draws from torch's generator: runs that begin now leave it out, layers computed again draw it alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from conftest import settings_with
from holdfast.config.config import Config
from holdfast.planning.plan import settings_of
from holdfast.trainer.model.load import checkpoint_layers, without_own_dropout
from support.architectures import GQA, LENGTHS, TERMS, gradients, task_of
from support.plans import a_plan
from support.rounding import but_for_rounding
from support.stand import Stand, model_folder

SMALL = {"vocab_size": 211, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
KINDS: dict[str, tuple[Callable[[], Any], str]] = {  # and a note
    "starcoder2": (
        lambda: transformers.Starcoder2Config(**GQA, residual_dropout=0.2, embedding_dropout=0.1),
        "residual_dropout 0.2 -> 0.0: the model's own code draws it",
    ),
    "opt": (
        lambda: transformers.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32, dropout=0.2, pad_token_id=0),
        "dropout 0.2 -> 0.0: the model's own code draws it",
    ),
    "biogpt, which has it in attention, too": (
        lambda: transformers.BioGptConfig(**SMALL, intermediate_size=48, pad_token_id=0),
        "dropout 0.1 -> 0.0: the model's own code draws it",
    ),
    "falcon, whose layers read it in the config": (
        lambda: transformers.FalconConfig(**{**SMALL, "hidden_dropout": 0.2, "pad_token_id": 0}),
        "hidden_dropout 0.2 -> 0.0: the model's own code draws it",
    ),
}


@pytest.mark.parametrize("name", ["starcoder2", "opt"])
def test_layers_that_are_computed_again_draw_what_they_drew_before(name: str) -> None:
    """Else the backward pass is that of other activations than the loss was computed from, and nothing says so."""
    task = task_of(KINDS[name][0](), packing=False)
    batches = task.batches(list(range(len(LENGTHS))), 64)
    torch.manual_seed(3)
    loss, plain = gradients(task, batches)
    assert checkpoint_layers(task.base, 2) == 2
    torch.manual_seed(3)
    again, checkpointed = gradients(task, batches)
    torch.manual_seed(4)
    assert gradients(task, batches)[0] != loss, "it is drawn"
    assert again == loss
    assert all(torch.equal(gradient, checkpointed[name]) for name, gradient in plain.items())


def test_where_nothing_is_drawn_no_state_of_a_generator_is_kept() -> None:
    task = task_of(KINDS["starcoder2"][0](), packing=False, dropout=0.2)
    without_own_dropout(task.base)
    checkpoint_layers(task.base, 2)
    kept = {one._gradient_checkpointing_func.keywords["preserve_rng_state"] for one in task.base.model.layers}
    assert kept == {False}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_that_begins_now_has_no_masks_that_depend_on_its_micro_batches(name: str, tmp_path: Path) -> None:
    config, note = KINDS[name]
    stand = Stand(model_folder(tmp_path / "model", config), settings={"own_dropout": False, "frozen": "fp32", "packing": False})
    assert any(one.startswith(note) for one in stand.task.notes)
    whole, split = stand.compute(2), stand.compute(2, budget=45)
    assert split.loss == but_for_rounding(whole.loss, TERMS) and split.grad_norm == but_for_rounding(whole.grad_norm, TERMS)
    assert stand.compute(3).loss == but_for_rounding(whole.loss, TERMS), "nothing is left that a step's number decides"


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_masks_that_are_a_hash_stay(tmp_path: Path) -> None:
    stand = Stand(model_folder(tmp_path / "model", "gpt2"), settings={"own_dropout": False, "frozen": "fp32"})
    assert not any("draws it" in one for one in stand.task.notes)
    assert stand.compute(2).loss != stand.compute(3).loss


def test_a_run_of_before_goes_on_with_what_it_drew(tmp_path: Path) -> None:
    assert settings_with().own_dropout
    config = Config.model_validate({"model": "tiny", "data": {"files": "rows.jsonl"}})
    assert not settings_of(config, a_plan(), {}, 1, 1, 1).own_dropout
    stand = Stand(model_folder(tmp_path / "model", KINDS["starcoder2"][0]), settings={"frozen": "fp32", "packing": False})
    assert not any("draws it" in one for one in stand.task.notes)
    assert stand.compute(2).loss == stand.compute(2).loss != stand.compute(3).loss
