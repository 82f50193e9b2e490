"""How fast this device multiplies the matrices of the run's own shapes, and a large square. Judges nothing."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from holdfast.base.files import Json
from holdfast.trainer.model.load import DTYPES
from holdfast.trainer.step.training_state import TrainingState

_REPEATS, _WIDTHS, _MOST_OPERATIONS = 4, {"cpu": 768, "cuda": 8192}, {"cpu": 4e9, "cuda": 4e12}


def products(training: TrainingState, request: Json, folder: Path) -> Json:
    """Time matmuls in the run's dtype, best of a few: {tflops: {"rows x inner x columns": rate}, square_tflops}."""
    dtype = DTYPES[training.settings.dtype]
    rows = int(min(training.settings.micro_batch_tokens, 4096))
    rates = {}
    for inner, columns in sorted(_shapes(training)):
        fits = int(min(rows, max(1, _MOST_OPERATIONS[training.device.type] / (2 * inner * columns))))
        rates[f"{fits} x {inner} x {columns}"] = round(_rate(fits, inner, columns, dtype, training.device) / 1e12, 4)
    width = _WIDTHS[training.device.type]
    square = _rate(width, width, width, dtype, training.device)
    return {"tflops": rates, "square_tflops": round(square / 1e12, 4), "dtype": training.settings.dtype}


def _shapes(training: TrainingState) -> set[tuple[int, int]]:
    """Return (inner, columns) of the model's matrices, the six largest at most."""
    found: set[tuple[int, int]] = set()
    for _, parameter in training.task.model.named_parameters():
        if parameter.ndim == 2 and min(parameter.shape) > 32:
            found.add((int(parameter.shape[1]), int(parameter.shape[0])))
    return set(sorted(found, key=lambda one: -one[0] * one[1])[:6])


def _rate(rows: int, inner: int, columns: int, dtype: torch.dtype, device: torch.device) -> float:
    a: Any = torch.ones(rows, inner, device=device, dtype=dtype)
    b: Any = torch.ones(inner, columns, device=device, dtype=dtype)
    times = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        float((a @ b)[-1, -1])
        times.append(time.perf_counter() - began)
    return 2.0 * rows * inner * columns / min(times)
