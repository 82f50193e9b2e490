"""One record for each kind: what the schema names, what torch parts and tables there are, and how much is trained, agree with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from kind_tables import PAGE, written

from conftest import ROOT
from holdfast.base.errors import Stop
from holdfast.base_model.folder import read_model
from holdfast.config.adapter import Adapter
from holdfast.config.adapter_kinds import KINDS, AdapterType
from holdfast.config.choices.frozen_formats import FORMATS, Frozen
from holdfast.config.choices.optimizers import OPTIMIZERS, OptimizerName
from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES, ObjectiveName
from holdfast.config.train import Preference
from holdfast.export.delta import FORMULAS
from holdfast.planning.memory.trained_size import trainable_parameters
from holdfast.supervision.preparation.needs import refuse_unread_preferences, unread_by_the_optimizer
from holdfast.trainer.model.trained.peft_kinds import PEFT_KINDS
from holdfast.trainer.optim.choose import OPTIMIZERS as UPDATES
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.tasks.text.objective import LOSSES, SequenceScores, objective_of
from support import forked
from support.plans import LLAMA
from support.selection import part_of
from support.stand import Stand, model_folder

MORE: dict[str, dict[str, Any]] = {"adalora": {"target_r": 2}, "prompt": {"virtual_tokens": 5}, "layers": {"layers": 1}}


def settings_of(kind: str) -> dict[str, Any]:
    return {"type": kind} | MORE.get(kind, {})


def test_the_schema_names_what_has_a_record() -> None:
    pairs = ((AdapterType, KINDS), (ObjectiveName, OBJECTIVES), (OptimizerName, OPTIMIZERS), (Frozen, FORMATS))
    assert all(get_args(names) == tuple(records) for names, records in pairs)


def test_each_record_has_its_torch_part_and_nothing_else_has_one() -> None:
    assert set(PEFT_KINDS) == {kind.name for kind in KINDS.values() if not kind.own_weights}
    assert set(LOSSES) == {kind.name for kind in OBJECTIVES.values() if kind.rows != "answers"}
    assert set(UPDATES) == set(OPTIMIZERS)
    assert set(FORMULAS) == {kind.merge for kind in KINDS.values() if kind.merge}


def test_each_key_of_an_adapter_is_read_by_some_kind() -> None:
    assert {key for kind in KINDS.values() for key in kind.keys} == set(Adapter.model_fields) - {"type", "start"}


def test_no_two_kinds_look_alike_in_a_file() -> None:
    seen = [(kind.peft, kind.flag) for kind in KINDS.values() if kind.peft]
    assert len(seen) == len(set(seen))


def test_the_tables_of_the_page_are_what_the_records_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "python scripts/kind_tables.py"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16)


BEGINNINGS = [(kind.name, init) for kind in KINDS.values() for init in ("default", "pissa") if init == "default" or "init" in kind.keys]


@pytest.mark.parametrize(("kind", "init"), BEGINNINGS)
def test_as_much_is_trained_as_the_record_counts_and_it_is_called_so(model: Path, kind: str, init: str) -> None:
    adapter = settings_of(kind) | ({"init": init} if init != "default" else {})
    stand = Stand(model, adapter=adapter)
    config = Config.model_validate({"model": str(model), "data": {"files": "x"}, "adapter": {"r": 4} | adapter})
    assert sum(tensor.numel() for tensor in stand.task.artifact.values()) == trainable_parameters(config, read_model(str(model)))
    record = KINDS[kind]
    assert record.own_weights == (stand.task.form.kind == "model")
    for part in record.parts:
        assert any(f".{part}" in name for name in stand.task.artifact), part
    if record.peft:
        assert stand.task.form.config["peft_type"] == record.peft
        assert all(name in stand.task.form.config for name in (*record.stored.values(), *([record.flag] if record.flag else [])))


def test_a_step_of_every_kind_and_objective_is_traced() -> None:
    """In a process of its own, whose classes it changes."""
    shape = LLAMA | {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 500, "pad_token_id": 0}
    own = {"micro_batch_tokens": 200, "checkpointed_layers": 0, "dtype": "fp32", "packing": True}
    step = {"device": "cpu", "attention": "sdpa", "threads": 2, "steps": 1, "samples": 1} | own
    draw = {"model": shape, "stored": "BF16", "lengths": [60, 50], "labels": 40}
    cases = [{"adapter": settings_of(kind), "settings": step | {"packing": not KINDS[kind].prefix}} for kind in part_of(KINDS)]
    cases += [{"adapter": {}, "settings": step, "train": {"objective": name}} for name in part_of(OBJECTIVES)]
    cases += [{"adapter": {"modules_to_save": ["lm_head"]}, "settings": step}]
    command = [sys.executable, str(ROOT / "benchmarks" / "plan" / "accuracy.py"), "--role", "trace"]
    asked = "".join(json.dumps(draw | case) + "\n" for case in cases)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, env=os.environ | {forked.FORK: ""})
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(cases), done.stderr[-2000:]
    assert all(one["peak"] > 0 and one["params"]["trainable"] > 0 for one in found)


UNREAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "simpo's with dpo": ("dpo", {"margin": 1.0}, "preference.margin is read with train.objective simpo; this is dpo"),
    "any with sft, where an objective was forgotten": ("sft", {"beta": 0.3}, "preference.beta is read with train.objective dpo, orpo"),
    "a loss of dpo's with orpo": ("orpo", {"loss": "ipo"}, "preference.loss is read with train.objective dpo; this is orpo"),
    "smoothing with ipo": ("dpo", {"loss": "ipo", "label_smoothing": 0.1}, "is read with preference.loss sigmoid; this is ipo"),
    "a scale of scores": ("reward", {"beta": 2.0}, "this is reward"),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_key_of_preference_that_a_loss_does_not_read_is_refused_before_a_run_begins(name: str) -> None:
    objective, preference, said = UNREAD[name]
    tree = {"model": "tiny", "data": {"files": "x"}, "train": {"objective": objective}, "preference": preference}
    config = Config.model_validate(tree)  # a run that began with it can still be read
    with pytest.raises(Stop, match=said):
        refuse_unread_preferences(config)


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.keys])
def test_each_key_that_a_loss_is_said_to_read_changes_it_and_no_other_does(name: str) -> None:
    kind, generator = OBJECTIVES[name], torch.Generator().manual_seed(3)
    logps, reference = (-3 * torch.rand(8, generator=generator) - 1 for _ in range(2))
    counts, good = torch.tensor([2, 3, 1, 4, 5, 1, 2, 2]), torch.tensor([True, False] * 4)
    scored = SequenceScores(logps, reference, counts, good, drift=torch.tensor(0.1))
    others = {
        "beta": 0.7,
        "loss": "hinge",
        "label_smoothing": 0.2,
        "length_normalised": True,
        "sft_weight": 0.5,
        "margin": 2.0,
        "desirable_weight": 3.0,
        "undesirable_weight": 3.0,
    }
    assert others.keys() == Preference.model_fields.keys()

    def loss(**given: Any) -> float:
        tree = {"model": "tiny", "data": {"files": "x"}, "train": {"objective": name}, "preference": given}
        objective = objective_of(Config.model_validate(tree))
        assert objective is not None
        return float(objective.of(scored)[0])

    assert {key for key, value in others.items() if loss(**{key: value}) != loss()} == set(kind.keys)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_number_that_an_optimizer_is_said_to_read_changes_its_steps_and_no_other_does(name: str) -> None:
    if OPTIMIZERS[name].moments == "blocks":
        pytest.importorskip("bitsandbytes")

    def stepped(**given: Any) -> torch.Tensor:
        train = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "train": {"optimizer": name, **given}}).train
        generator = torch.Generator().manual_seed(3)
        leaves = {one: torch.randn(shape, generator=generator).requires_grad_() for one, shape in (("a", (16, 16)), ("b", (5,)))}
        optimizer = optimizer_of(leaves, train)
        for _ in range(3):
            optimizer.gradient.copy_(torch.randn(optimizer.gradient.shape, generator=generator))
            optimizer.step(1e-2)
        return torch.cat([optimizer.weights.detach(), *(one.detach().flatten() for one in optimizer.kept().values())])

    changed = {"beta1": 0.5, "beta2": 0.6, "epsilon": 0.1}
    assert {key for key, value in changed.items() if not torch.equal(stepped(**{key: value}), stepped())} == set(OPTIMIZERS[name].keys)
    config = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "train": {"optimizer": name, **changed}})
    told = " ".join(unread_by_the_optimizer(config))
    assert all((f"train.{key}" in told) is (key not in OPTIMIZERS[name].keys) for key in changed)
