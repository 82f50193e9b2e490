"""Run by test_offload.py on the simulated card: moments and activations in main memory give the bits of those on it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import simulated_card as card
import torch

from holdfast.config.train import Train
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.model.offload import HostActivations
from holdfast.trainer.optim import optimizer as module
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.simple import Lion

SIZE = 5000
LERP = 4 * 5120  # what torch.lerp takes for its result: of a stretch, or of all


def made(kind: str, weights: str, offload: str) -> module.Elementwise:
    train = Train(steps=1, optimizer=kind, weights=weights, offload=offload, weight_decay=0.1)  # type: ignore[arg-type]
    torch.manual_seed(0)
    values = torch.randn(SIZE).to(torch.float32 if weights == "fp32" else torch.bfloat16)
    found = optimizer_of({"a": values[:3000].view(30, 100).to("cuda"), "b": values[3000:].to("cuda")}, train)
    assert isinstance(found, module.Elementwise)
    return found


def updated(one: module.Elementwise) -> list[torch.Tensor]:
    """Weights and moments after three updates on a card that is full."""
    torch.manual_seed(1)
    for _ in range(3):
        one.gradient.copy_(torch.randn(SIZE).to(one.gradient.dtype))
        card.limit(card.now() + (LERP if isinstance(one, Lion) else 0))
        one.step(1e-2)
        card.limit(-1)
    return [one.weights.cpu(), *(moment.cpu() for moment in one.moments)]


def passed(model: torch.nn.Module, keeping: Any) -> tuple[list[torch.Tensor], int, int]:
    """(gradients, waits, copies of memory that is not pinned)."""
    waits, pageable = card.syncs(), card.pageable()
    with keeping():
        loss = model(torch.ones(32, 64, device="cuda")).sum()
    found = torch.autograd.grad(loss, list(model.parameters()))
    waits, pageable = card.syncs() - waits, card.pageable() - pageable
    return [one.cpu() for one in found], waits, pageable


module.Elementwise.STRETCH = 1024
for kind in ("adamw", "lion", "sgd"):
    for weights in ("fp32", "bf16"):
        before = card.now()
        there = made(kind, weights, "off")
        on_card = card.now() - before
        away = made(kind, weights, "optimizer")
        saved = 4 * SIZE * len(away.KINDS)
        assert all(moment.device.type == "cpu" for moment in away.moments) and len(away.stretches) == 5
        assert card.now() - before - on_card < on_card - saved + 3 * 4 * 1024 * len(away.KINDS) + 32 * 1024
        assert all(map(torch.equal, updated(away), updated(there))), (kind, weights)
        assert card.races() == 0
        image = TensorImage(away.state())
        assert not image.extremes(), "what lies in main memory is looked at where it was copied to, not by the thread that trains"
        del away, there

# last, for what autograd's thread still holds of a pass may go at any time, and bytes of the card were counted above
deep = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(
    "cuda"
)
whole, away_too = passed(deep, nullcontext), passed(deep, HostActivations(deep))
assert all(map(torch.equal, whole[0], away_too[0])) and whole[1:] == away_too[1:] == (0, 0) and card.races() == 0
print("all of it")
