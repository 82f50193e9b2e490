"""The optimizer in one kernel, beside the same steps one operation at a time."""

from __future__ import annotations

from typing import Any

import torch

_STEPS, _SHAPE = 3, (33, 17)
_TOLERANCE = 1e-5


def probe(device: torch.device) -> dict[str, Any]:
    """Test AdamW in one kernel: {outcome, device, error: worst difference of a weight}. absent: this build has none."""
    plain = _train(device, fused=False)
    try:
        found = _train(device, fused=True)
    except RuntimeError as refused:
        return {"outcome": "absent", "detail": str(refused).splitlines()[0][:200]}
    error = float((plain - found).abs().max())
    facts = {"device": device.type, "error": error}
    if not error <= _TOLERANCE:
        return {"outcome": "wrong", "detail": f"after {_STEPS} steps a weight differs by {error:.2g}", **facts}
    return {"outcome": "ok", **facts}


def _train(device: torch.device, fused: bool) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    weight = torch.randn(_SHAPE, generator=draw).to(device).requires_grad_()
    optimizer = torch.optim.AdamW([weight], lr=1e-2, fused=fused)
    for _ in range(_STEPS):
        weight.grad = torch.randn(_SHAPE, generator=draw).to(device)
        optimizer.step()
    return weight.detach().cpu()
