"""A spot check for silent corruption: each rank computes a part of another's work as well, and bits that differ name who is wrong.

A card or core that computes wrong without an error (Dixit et al. 2021, arXiv 2102.11245) is seen by nothing else: losses stay finite, and
all ranks take the same wrong update. Costs about three parts of a step, of as many as there are ranks, each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor

from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import parts_of
from holdfast.trainer.step.step import Announce
from holdfast.trainer.step.training_state import TrainingState

_HINT = "test that machine's memory and device (memtest, the vendor's own test), or leave it out; then rerun the same command to resume"


def spot_check(training: TrainingState, step: int, samples: list[int], announce: Announce) -> None:
    """Compute the gradients of this rank's part of `step` twice and those of the next rank's once. No weight has moved when it returns.

    Does nothing on one rank, or where a rank would have no sample. Raises Refusal on every rank alike where bits differ, OutOfMemory,
    and PeerLost.
    """
    rank, data = training.rank, training.task.data
    if rank.size == 1 or len(samples) < rank.size:
        return
    parts = parts_of(samples, lambda: data.sizes, rank.size)
    mine, others = parts[rank.number], parts[(rank.number + 1) % rank.size]

    def work() -> list[str]:
        digests = []
        for part in (mine, mine, others):
            training.compute_alone(step, part, announce)
            digests.append(_digest(training.optimizer.gradient))
        return digests

    _, told = rank.agreed(work, lambda digests: {"digests": digests})
    training.optimizer.clear()
    wrong, sure = suspects([one["digests"] for one in told])
    if wrong:
        named = f"rank {', '.join(map(str, wrong))}" + ("" if sure else ", one of which is wrong")
        text = f"the same gradients of step {step} came out with other bits on {named}: it computes wrong without an error"
        training.job.event("rank_differs", step=step, ranks=wrong, sure=sure)
        raise Refusal("hardware_fault", text, _HINT)


def suspects(told: Sequence[Sequence[str]]) -> tuple[list[int], bool]:
    """Find which ranks are to blame: (ranks, whether it is certain which). told: of each rank its own part, that again, the next rank's.

    One that differs from itself is wrong. Else a part that two ranks computed differently blames both; a rank that is blamed twice is it.
    """
    size = len(told)
    if unsteady := [rank for rank, (first, again, _) in enumerate(told) if first != again]:
        return unsteady, True
    pairs = [(rank, (rank + 1) % size) for rank in range(size) if told[rank][2] != told[(rank + 1) % size][0]]
    blamed = [rank for pair in pairs for rank in pair]
    twice = sorted({rank for rank in blamed if blamed.count(rank) > 1})
    if size > 2 and twice:
        return twice, len(twice) == 1
    return sorted(set(blamed)), False


def _digest(gradient: Tensor) -> str:
    return hashlib.sha256(gradient.detach().cpu().numpy().tobytes()).hexdigest()
