"""Milliseconds of a step under each path: what determinism, the loop of samples, dropout, Liger and checkpointing cost."""

from __future__ import annotations

import json
from importlib.util import find_spec

from stages import training
from stages.common import Json, Place

VARIANTS: dict[str, Json] = {
    "plain": {},
    "deterministic": {"deterministic": True},
    "loop": {"varlen": False},
    "dropout": {"dropout": 0.05},
    "dropout-unfused": {"dropout": 0.05, "fused": False},
    "unfused": {"fused": False},
    "liger": {"liger": True},
    "checkpointed": {"checkpointed_layers": 1000},
    "padded": {"packing": False},
}


def run(place: Place, size: str = "qwen0.5b", variants: tuple[str, ...] = tuple(VARIANTS), tokens: int = 8192) -> None:
    base: Json = {}
    for name in variants:
        if name == "liger" and find_spec("liger_kernel") is None:
            place.answer(name, None, "liger-kernel is not installed")
            continue
        how = {"liger": False, "deterministic": False} | VARIANTS[name]
        try:
            found = training.measured(place, size, tokens, **how)
        except Exception as error:  # noqa: BLE001  # the other paths are still asked
            place.answer(name, None, f"{type(error).__name__}: {str(error)[:300]}")
            continue
        base = base or found
        rate, peak = 1e3 * tokens / found["ms"], found["allocated"] / 1e9
        note = f"{found['ms']:.1f} ms, {rate:,.0f} tokens/s, peak {peak:.1f} GB, {json.dumps(found['settings'])}"
        place.answer(name, round(found["ms"] / base["ms"], 3), f"{note} {'; '.join(found['notes'])}"[:600])
