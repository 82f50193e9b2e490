"""Whether what a process resumed from is what was saved: each trainable tensor in memory against the checkpoint's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from holdfast.callback.snapshot import WEIGHTS, live_weights


@torch.no_grad()
def differing(model: Any, checkpoint: Path) -> tuple[list[str], int] | None:
    """Return (tensors that differ from the checkpoint, how many were compared); None where there is nothing to compare with.

    The case of huggingface/accelerate#4206: a resume that puts most of an adapter back to its start, without a word.
    """
    file = next((checkpoint / name for name in WEIGHTS if (checkpoint / name).exists()), None)
    if file is None:
        return None
    from safetensors import safe_open

    live = live_weights(model)
    wrong, looked = [], 0
    with safe_open(file, framework="pt") as saved:
        for name in saved.keys():  # noqa: SIM118  (it is no dict)
            if name not in live:
                continue
            held = live[name]
            held = (held.full_tensor() if hasattr(held, "full_tensor") else held).detach().cpu()
            value = saved.get_tensor(name)
            if value.numel() and not held.numel():
                continue  # its values are cut among processes (DeepSpeed's third stage)
            looked += 1
            if held.shape != value.shape or not (_same(held.to(value.dtype), value) or _same(held, value.to(held.dtype))):
                wrong.append(name)
    return (wrong, looked) if looked else None


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether they hold the same numbers; what is no number in both was saved so."""
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())
