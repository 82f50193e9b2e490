"""torch.compile: a norm, a gate and a product in one compiled function, forward and backward, beside the same uncompiled."""

from __future__ import annotations

from typing import Any

import torch

_TOLERANCE = 1e-4


def probe(device: torch.device) -> dict[str, Any]:
    """Test torch.compile: {outcome, device, error}. absent on the CPU, where compiling takes longer than it gains."""
    return compiles(device) if device.type != "cpu" else {"outcome": "absent", "detail": "nothing is compiled on the CPU"}


def compiles(device: torch.device) -> dict[str, Any]:
    """Test torch.compile on any device. Raises RuntimeError where no compiler works."""
    plain, found = _run(_block, device), _run(torch.compile(_block), device)
    error = max(float((one - other).norm() / one.norm()) for one, other in zip(plain, found, strict=True))
    if not error <= _TOLERANCE:
        return {"outcome": "wrong", "detail": f"compiled code differs by {error:.2g} from the same uncompiled", "device": device.type}
    return {"outcome": "ok", "device": device.type, "error": error}


def _block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    gate, up = (normed @ weight).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def _run(block: Any, device: torch.device) -> list[torch.Tensor]:
    """Compute the block's result and both gradients."""
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(size, generator=draw).to(device).requires_grad_() for size in ((48, 64), (64, 160)))
    result = block(x, weight)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), (x, weight))]
