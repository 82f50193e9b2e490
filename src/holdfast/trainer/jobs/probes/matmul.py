"""Matrix products, forward and backward, against fp64 on the CPU: at a plain shape and at ones that have broken BLAS libraries."""

from __future__ import annotations

from typing import Any

import torch

from holdfast.trainer.jobs.probes.speed import best_seconds

# m, n, k of a [m, k] times b [n, k] transposed. 8 x 412 x 896: hipBLASLt had no solution, or a wrong one, for it.
SHAPES = ((128, 128, 128), (8, 412, 896), (1, 896, 412), (413, 17, 129))
# How far the result may be off, relative to the norm of the right one: several times what each type's rounding gives.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2, torch.float16: 2e-3}
_TIMED, _REPEATS = 512, 8


def probe(device: torch.device) -> dict[str, Any]:
    """Test matmuls: {outcome, device, errors: {dtype: worst relative error}, bf16_speed: of fp32's}. wrong: beyond its tolerance."""
    errors, wrong = {}, []
    for dtype, tolerance in TOLERANCES.items():
        found = {shape: _error(shape, dtype, device) for shape in SHAPES}
        name = str(dtype).removeprefix("torch.")
        errors[name] = max(found.values())
        wrong += [
            f"{name} {'x'.join(map(str, shape))}: relative error {error:.2g}" for shape, error in found.items() if not error <= tolerance
        ]
    speed = _seconds(torch.float32, device) / _seconds(torch.bfloat16, device)
    facts = {"device": device.type, "errors": errors, "bf16_speed": round(speed, 2)}
    return {"outcome": "wrong", "detail": "; ".join(wrong), **facts} if wrong else {"outcome": "ok", **facts}


def _error(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """Return the worst relative error of the product and both gradients; infinite where one is not finite."""
    m, n, k = shape
    draw = torch.Generator().manual_seed(m * n + k)
    parts = [torch.randn(rows, columns, generator=draw).to(dtype) for rows, columns in ((m, k), (n, k), (m, n))]
    right = _product(*(part.double() for part in parts))
    found = [part.double().cpu() for part in _product(*(part.to(device) for part in parts))]
    errors = [float((got - wanted).norm() / wanted.norm()) for got, wanted in zip(found, right, strict=True)]
    return max(error if error == error else float("inf") for error in errors)


def _product(a: torch.Tensor, b: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    result = a @ b.T
    return [result.detach(), *torch.autograd.grad(result, (a, b), gradient)]


def _seconds(dtype: torch.dtype, device: torch.device) -> float:
    """Return the best time of a square product."""
    a = torch.randn(_TIMED, _TIMED, device=device).to(dtype)
    return best_seconds(lambda: (a @ a).float().sum(), _REPEATS)
