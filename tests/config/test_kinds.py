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
from holdfast.base_model.folder import read_model
from holdfast.config.adapter import Adapter
from holdfast.config.adapter_kinds import KINDS, AdapterType
from holdfast.config.choices.frozen_formats import FORMATS, Frozen
from holdfast.config.choices.optimizers import OPTIMIZERS, OptimizerName
from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES, ObjectiveName
from holdfast.export.delta import FORMULAS
from holdfast.planning.memory.trained_size import trainable_parameters
from holdfast.trainer.model.trained.peft_kinds import PEFT_KINDS
from holdfast.trainer.optim.choose import OPTIMIZERS as UPDATES
from holdfast.trainer.tasks.text.objective import LOSSES
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
