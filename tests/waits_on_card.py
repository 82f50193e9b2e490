"""`python waits_on_card.py` with the simulated card: steps whose successor is laid out meanwhile. Run by test_faked.py."""

from __future__ import annotations

import simulated_card as card
import torch

from holdfast.config.train import Train
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.step import compute_gradients, gradients_sha256
from support.architectures import ARCHITECTURES, task_of

STEPS = [[0, 1, 2], [3, 4, 5], [1, 5], [0, 2, 4]]


def main() -> None:
    task = task_of(ARCHITECTURES["qwen2"](), dropout=0.1)
    task.model.to("cuda")
    task.device = torch.device("cuda:0")
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
