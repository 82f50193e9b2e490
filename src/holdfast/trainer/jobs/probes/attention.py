"""torch's own attention, forward and backward, against the plain formula in fp64 on the CPU: causal, and with a mask at a bad length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

HEADS, WIDTH = 2, 64
LENGTHS = (128, 192, 77)  # 192 leaves 64 modulo 128, where cuDNN's backward gave NaN
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


def probe(device: torch.device) -> dict[str, Any]:
    """Test attention: {outcome, device, errors: {dtype: worst relative error}}. wrong: an error beyond its tolerance."""
    errors: dict[str, float] = {}
    wrong = []
    for dtype, tolerance in TOLERANCES.items():
        name = str(dtype).removeprefix("torch.")
        for length in LENGTHS:
            for masked in (False, True):
                error = _error(length, masked, dtype, device)
                errors[name] = max(error, errors.get(name, 0.0))
                if not error <= tolerance:
                    wrong.append(f"{name}, length {length}, {'mask' if masked else 'causal'}: relative error {error:.2g}")
    facts = {"device": device.type, "errors": errors}
    return {"outcome": "wrong", "detail": "; ".join(wrong), **facts} if wrong else {"outcome": "ok", **facts}


def _error(length: int, masked: bool, dtype: torch.dtype, device: torch.device) -> float:
    """Return the worst relative error of the result and its three gradients; infinite where one is not finite."""
    draw = torch.Generator().manual_seed(length)
    parts = [torch.randn(1, HEADS, length, WIDTH, generator=draw).to(dtype) for _ in range(4)]
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    given: dict[str, Any] = {"attn_mask": mask.to(device)} if masked else {"is_causal": True}
    right = _run([part.double() for part in parts], lambda q, k, v: _plain(q, k, v, mask))
    got = _run([part.to(device) for part in parts], lambda q, k, v: scaled_dot_product_attention(q, k, v, **given))
    errors = [float((one.double().cpu() - other).norm() / other.norm()) for one, other in zip(got, right, strict=True)]
    return max(error if error == error else float("inf") for error in errors)


def _plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2)) / WIDTH**0.5
    weights: torch.Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights @ v


def _run(parts: list[torch.Tensor], attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Compute attention of query, key and value, and their gradients for the fourth part."""
    q, k, v = (part.detach().requires_grad_() for part in parts[:3])
    result = attend(q, k, v)
    return [result.detach(), *torch.autograd.grad(result, (q, k, v), parts[3])]
