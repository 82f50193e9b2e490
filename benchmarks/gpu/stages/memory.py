"""Bytes of the device beside the plan's, for several shapes of a step. The plan must not say too little."""

from __future__ import annotations

from stages import training
from stages.common import Json, Place

SHAPES: dict[str, Json] = {
    "2k": {"tokens": 2048},
    "8k": {"tokens": 8192},
    "8k-dropout": {"tokens": 8192, "dropout": 0.05},
    "8k-checkpointed": {"tokens": 8192, "checkpointed_layers": 1000},
    "8k-rank-64": {"tokens": 8192, "r": 64},
}


def run(place: Place, size: str = "qwen0.5b", shapes: tuple[str, ...] = tuple(SHAPES)) -> None:
    most, least, told = 0.0, 100.0, []
    for name in shapes:
        found = training.measured(place, size, times=2, **SHAPES[name])
        share = found["allocated"] / found["planned"]
        most, least = max(most, share), min(least, share)
        sizes = ", ".join(f"{kind} {found[kind] / 1e9:.2f}" for kind in ("built", "allocated", "reserved", "planned"))
        told.append(f"{name}: {sizes} GB")
    if place.smoke:
        told.insert(0, "not judged: the simulated card has not the attention that a card's plan counts on")
    place.answer("under-plan", None if place.smoke else round(most, 3), "; ".join(told))
    place.answer("over-plan", None if place.smoke else round(least, 3), "the shape the plan exaggerates most")
