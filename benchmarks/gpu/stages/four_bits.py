"""A start in nf4 beside its plan, from the first byte on; and what a step in 4 bits costs beside one in 16."""

from __future__ import annotations

import importlib.util
import json

from stages import training
from stages.common import Json, Place

SHAPES: dict[str, Json] = {
    "half": {"frozen": "half"},
    "nf4": {"frozen": "nf4"},
    "half-dropout": {"frozen": "half", "dropout": 0.05},
    "nf4-dropout": {"frozen": "nf4", "dropout": 0.05},
}


def run(place: Place, size: str = "qwen0.5b", tokens: int = 2048) -> None:
    if importlib.util.find_spec("bitsandbytes") is None or place.smoke:
        for question in ("start", "nf4", "nf4-dropout"):
            place.answer(question, None, "bitsandbytes is not installed, or not for the simulated card")
        return
    took: dict[str, float] = {}
    for name, how in SHAPES.items():
        found = training.measured(place, size, tokens, times=4, **how)
        took[name] = found["ms"]
        bytes_told = ", ".join(f"{kind} {found[kind] / 1e9:.2f}" for kind in ("loading", "built", "allocated", "planned"))
        note = f"{found['ms']:.1f} ms; {bytes_told} GB; {json.dumps(found['settings'])} {'; '.join(found['notes'])}"[:600]
        if name == "nf4":
            place.answer("start", round(max(found["loading"], found["allocated"]) / found["planned"], 3), note)
        if name.startswith("nf4"):
            wide = took[name.replace("nf4", "half")]
            place.answer(name, round(found["ms"] / wide, 3), f"{note}; 16 bits {wide:.1f} ms")
