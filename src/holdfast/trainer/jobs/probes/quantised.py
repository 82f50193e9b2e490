"""bitsandbytes, where it is installed: weights in 4 bits and products with them, forward and backward; optimizer state in 8 bits."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

BLOCKS = (64, 128)  # numbers that share a scale; on AMD cards with wavefronts of 64 the smaller needed a kernel of its own
# Errors relative to the norm of the right result: what rounding to so few bits costs a normal distribution is 0.1 and 0.01.
_ROUND_TRIP_4, _ROUND_TRIP_8, _PRODUCT = 0.15, 0.03, 2e-2
ROWS = (16, 4)  # few rows, as generation has them, go through kernels of their own: bitsandbytes#2087


def probe(device: torch.device) -> dict[str, Any]:
    """Test bitsandbytes: {outcome, device, errors: {what: relative error}}. absent: not installed. wrong: beyond so few bits' error."""
    if importlib.util.find_spec("bitsandbytes") is None:
        return {"outcome": "absent", "detail": "bitsandbytes is not installed"}
    errors: dict[str, tuple[float, float]] = {"8 bits": (_eight_bits(device), _ROUND_TRIP_8)}
    for block in BLOCKS:
        trip, products = _four_bits(block, device)
        errors[f"4 bits, blocks of {block}"] = (trip, _ROUND_TRIP_4)
        errors |= {f"product of {rows} rows, blocks of {block}": (product, _PRODUCT) for rows, product in products.items()}
    facts = {"device": device.type, "errors": {name: error for name, (error, _) in errors.items()}}
    wrong = [f"{name}: relative error {error:.2g}" for name, (error, most) in errors.items() if not error <= most]
    return {"outcome": "wrong", "detail": "; ".join(wrong), **facts} if wrong else {"outcome": "ok", **facts}


def _eight_bits(device: torch.device) -> float:
    from bitsandbytes.functional import dequantize_blockwise, quantize_blockwise

    given = torch.randn(64, 256, generator=torch.Generator().manual_seed(1)).to(device)
    return _apart(dequantize_blockwise(*quantize_blockwise(given)), given)


def _four_bits(block: int, device: torch.device) -> tuple[float, dict[int, float]]:
    """Return errors of (the weight after 4 bits and back, products and gradients by their rows), against that weight in fp32."""
    from bitsandbytes import matmul_4bit
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    draw = torch.Generator().manual_seed(block)
    weight = torch.randn(128, 256, generator=draw).to(device)
    packed, state = quantize_4bit(weight.to(torch.bfloat16), blocksize=block, quant_type="nf4")
    kept = dequantize_4bit(packed, state).float()
    products: dict[int, float] = {}
    for rows in ROWS:
        given, gradient = (torch.randn(rows, width, generator=draw).to(device) for width in (256, 128))
        x = given.to(torch.bfloat16).requires_grad_()
        result = matmul_4bit(x, packed.t(), quant_state=state)
        (found,) = torch.autograd.grad(result, x, gradient.to(torch.bfloat16))
        x = given.clone().requires_grad_()
        right = x @ kept.T
        (wanted,) = torch.autograd.grad(right, x, gradient)
        products[rows] = max(_apart(result, right), _apart(found, wanted))
    return _apart(kept, weight), products


def _apart(found: torch.Tensor, right: torch.Tensor) -> float:
    """Return the difference relative to the norm of the right one; infinite where a number is not finite."""
    error = float((found.detach().float() - right.detach().float()).norm() / right.detach().float().norm())
    return error if error == error else float("inf")
