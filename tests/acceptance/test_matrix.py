"""Any way of training on any way of holding, learning and updating: a step replayed in another process, split, and one poisoned row."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from support.architectures import LABELS, ROUNDINGS, TERMS
from support.pairs import pairs_of
from support.rounding import but_for_rounding, rounded_otherwise
from support.stand import Stand, model_folder

ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {"dropout": 0.1},
    "rslora": {"type": "rslora", "init": "pissa"},
    "dora": {"type": "dora"},
    "adalora": {"type": "adalora", "target_r": 2},
    "prompt": {"type": "prompt", "virtual_tokens": 3},
    "ia3": {"type": "ia3"},
    "full": {"type": "full"},
    "layers": {"type": "layers", "layers": 1},
}
FROZEN = ("fp32", "half", "nf4", "int8")
OPTIMIZERS: dict[str, float] = {
    "adamw": 1e-2,
    "adamw8bit": 1e-2,
    "schedule_free": 1e-2,
    "adafactor": 0.1,
    "lion": 1e-3,
    "muon": 1e-2,
    "sgd": 0.1,
}
OBJECTIVES = ("sft", "dpo", "orpo", "simpo", "kto", "reward")
DTYPES = ("fp32", "bf16", "fp16")


def makes_sense(adapter: str, frozen: str, optimizer: str, objective: str) -> bool:
    own = adapter in ("full", "layers")
    if own and (frozen in ("nf4", "int8") or objective in ("dpo", "kto", "reward")):
        return False
    apart = {("rslora", "muon"), ("adalora", "schedule_free"), ("prompt", "reward")}
    return not {(adapter, optimizer), (adapter, objective)} & apart


CELLS = [cell for cell in product(ADAPTERS, FROZEN, OPTIMIZERS, OBJECTIVES) if makes_sense(*cell)]
EVERYWHERE = (("lora", "nf4", "adamw8bit", "dpo"), ("dora", "half", "lion", "orpo"), ("full", "half", "muon", "sft"))
STRIDE = 11  # so many cells apart; coprime to the length of each table, so that every entry of each has its turn


def chosen() -> list[Any]:
    cells = [*EVERYWHERE, *(cell for cell in CELLS[::STRIDE] if cell not in EVERYWHERE)]
    return [
        pytest.param(*cell, DTYPES[at % 3], id="-".join((*cell, DTYPES[at % 3])), marks=[] if cell in EVERYWHERE else [pytest.mark.long])
        for at, cell in enumerate(cells)
    ]


def stand_of(model: Path, adapter: str, frozen: str, optimizer: str, objective: str, dtype: str) -> Stand:
    tokens = None if objective == "sft" else pairs_of(marked=objective == "kto")
    train = {"objective": objective, "optimizer": optimizer, "lr": OPTIMIZERS[optimizer], "frozen": frozen}
    return Stand(model, tokens=tokens, settings={"frozen": frozen, "dtype": dtype}, train=train, adapter=ADAPTERS[adapter])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}  # rows are whole blocks, which DoRA on 4 bits needs
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16, **sizes)


@pytest.mark.parametrize(("adapter", "frozen", "optimizer", "objective", "dtype"), chosen())
def test_a_cell_is_pure_splits_and_keeps_poison_out(
    model: Path, adapter: str, frozen: str, optimizer: str, objective: str, dtype: str
) -> None:
    if frozen in ("nf4", "int8") or optimizer == "adamw8bit":
        pytest.importorskip("bitsandbytes")
    cell = (adapter, frozen, optimizer, objective, dtype)
    stand = stand_of(model, *cell)
    first = [stand.step(step) for step in (1, 2)]
    kept = stand.saved()
    later = [stand.step(step) for step in (3, 4)]
    again = stand_of(model, *cell)
    again.restore(kept)
    assert [again.step(step) for step in (3, 4)] == later and again.saved() == stand.saved()
    assert all(map(math.isfinite, first + later))
    whole, split = stand.compute(5), stand.compute(5, budget=60)
    size = 1 if objective == "sft" else 16  # of an answer's log-probability, whose exponential a loss of pairs is
    terms = TERMS if dtype == "fp32" else ROUNDINGS / LABELS * rounded_otherwise(TERMS, stand.task.dtype)
    assert split.loss == but_for_rounding(whole.loss, terms, stand.task.dtype, condition=size)
    before = stand.saved()
    bad = stand.rows[2]
    poisoned = stand.compute(5, announce=lambda phase, _, batch: math.nan if phase == "backward" and bad in batch.numbers else 1.0)
    assert not poisoned.finite and not stand.training.apply(5, poisoned) and stand.saved() == before
    without = stand.compute(5, rows=[row for row in stand.rows if row != bad])
    assert without.finite


@pytest.mark.long
@pytest.mark.parametrize("adapter", ["lora", "adalora", "full"])
def test_a_fresh_process_replays_the_step_to_the_bit(model: Path, adapter: str, tmp_path: Path) -> None:
    cell = (adapter, "half", "adamw", "sft", "fp32")
    stand = stand_of(model, *cell)
    stand.step(1)
    for name, image in zip(("artifact", "state"), stand.saved(), strict=True):
        (tmp_path / name).write_bytes(image)
    program = (
        "import json, sys; from pathlib import Path; from test_matrix import stand_of; model, folder, *cell = sys.argv[1:];"
        "stand = stand_of(Path(model), *cell);"
        "stand.restore(tuple((Path(folder) / name).read_bytes() for name in ('artifact', 'state')));"
        "loss = stand.step(2); (Path(folder) / 'after').write_bytes(stand.saved()[0]); print(json.dumps(loss))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(model), str(tmp_path), *cell],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == stand.step(2)
    assert (tmp_path / "after").read_bytes() == stand.saved()[0]
