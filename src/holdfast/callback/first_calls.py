"""Call torch's vector functions once, on one element, before anything computes: the first call of a process may be wrong.

oneMKL 2024.2, which torch's wheels for x86 carry, finds out at the first call of any of its vector functions which kernels the CPU has,
and stores the number it found before the one that it stands for. A thread that reads it in between computes its share with a
low-accuracy kernel, once. A call on one element runs in one thread, whatever their number. Costs under a millisecond; where torch has
no MKL it does nothing but that. Source: https://github.com/pytorch/pytorch/issues/188792
"""

from __future__ import annotations

import torch

# IMPLEMENT_VML_MKL in torch's source: https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/cpu/vml.h
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "log", "log10"),
    *("log2", "sin", "sqrt", "tan", "tanh", "trunc"),
)


def make_first_calls() -> None:
    """Make the first call of each function, in single and in double precision. Draws nothing, leaves the number of threads alone."""
    with torch.no_grad():
        for kind in (torch.float32, torch.float64):
            one = torch.ones(1, dtype=kind, device="cpu")
            for name in FUNCTIONS:
                getattr(torch, name)(one)
