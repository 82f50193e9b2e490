"""One state on all ranks: the first one's, at the start; the same bits ever after, which is looked at now and then. Saves nothing."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.step.training_state import TrainingState


def share_state(training: TrainingState) -> None:
    """Give every rank the first one's weights and optimizer state. Raises Refusal where they did not arrive bit for bit."""
    if training.rank.size == 1:
        return
    live = [*training.artifact.tensors.values(), *training.state.tensors.values()]
    training.rank.share(live)
    training.optimizer.restored()
    told = training.rank.exchange({"sha256": _digest(live)})
    if wrong := [str(number) for number, one in enumerate(told) if one != told[0]]:
        text = f"rank {', '.join(wrong)} did not receive the first rank's weights as they are: a network or memory that changes bits"
        raise Refusal("hardware_fault", text, "test this machine's memory and network, then rerun the same command")


def _digest(tensors: list[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
