"""`python waits_on_card.py` with the simulated card: steps whose successor is laid out meanwhile. Run by test_faked.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import simulated_card as card
import torch

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.config.train import Train
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.step.step import compute_gradients, gradients_sha256
from holdfast.trainer.tasks.text.compared import ComparedLoss, StartValues
from holdfast.trainer.tasks.text.objective import objective_of
from holdfast.trainer.tasks.text.reference import StoredValues
from support.architectures import ARCHITECTURES, task_of
from support.pairs import pairs_of

STEPS = [[0, 1, 2], [3, 4, 5], [1, 5], [0, 2, 4]]


def on_card() -> Any:
    task = task_of(ARCHITECTURES["qwen2"](), dropout=0.1)
    task.model.to("cuda")
    task.device = torch.device("cuda:0")
    return task


def compared(objective: str, folder: Path, begun: bool = False) -> None:
    """Answers that are held against each other: what the model without its adapter says of a step's rows is asked for meanwhile.

    begun: it is the adapter that the run began from.
    """
    task, train = on_card(), {"objective": objective}
    task.tokens = pairs_of(6, marked=objective == "kto")
    config = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "train": train})
    settings = Settings(steps=1, samples=6, threads=1, micro_batch_tokens=64)
    task.compared = ComparedLoss(task, objective_of(config), config.train.objective_kind, settings, folder)
    task.compared.order = np.arange(6)
    task.compared.start = StartValues.copied(task.trained) if begun else None
    optimizer, passes = AdamW(task.artifact, Train()), task.compared._scores
    task.compared._scores = lambda rows, without=False: (seen.append(without), passes(rows, without))[1]
    for number, samples in enumerate(STEPS):
        seen: list[bool] = []
        waits, pageable = card.syncs(), card.pageable()
        compute_gradients(task, optimizer, number, samples, 64, lambda *_: 1.0, lambda at=number: task.prepare(STEPS[(at + 1) % 4], 64))
        done = card.syncs() - waits, card.pageable() - pageable
        assert done == (1, 1) or number == 0, (objective, number, done)
        assert seen.count(True) <= 4 if number < 2 else objective == "kto" or not seen, (objective, number, seen)
    task.compared.score(list(range(6)))
    kept = [file.read_bytes() for file in folder.glob("reference-*.bin")]
    assert len(kept) == (objective in ("dpo", "kto")) and all(
        StoredValues(file, 6).missing([*range(6)], 1) == [] for file in folder.glob("*")
    )
    assert card.races() == 0


def main() -> None:
    task = on_card()
    optimizer = AdamW(task.artifact, Train())

    def computed(number: int, ahead: bool) -> tuple[float, str, int, int]:
        following, budget = STEPS[(number + 1) % len(STEPS)], 64 if number else 32  # what is laid out otherwise than asked for is not used
        waits, pageable = card.syncs(), card.pageable()
        found = compute_gradients(
            task, optimizer, number, STEPS[number], 64, lambda *_: 1.0, lambda: task.prepare(following, budget) if ahead else None
        )
        counted = card.syncs() - waits, card.pageable() - pageable
        return found.loss, gradients_sha256(optimizer), *counted

    plain = [computed(number, ahead=False) for number in range(len(STEPS))]
    ahead = [computed(number, ahead=True) for number in range(len(STEPS))]
    assert ahead == plain, "the same losses and gradients"
    assert {step[2:] for step in ahead} == {(1, 1)}, "each waits once and reads its three numbers"
    assert card.races() == 0


if __name__ == "__main__":
    main()
    for objective, begun in (("dpo", False), ("simpo", False), ("orpo", False), ("kto", False), ("dpo", True), ("kto", True)):
        with tempfile.TemporaryDirectory() as folder:
            compared(objective, Path(folder), begun)
