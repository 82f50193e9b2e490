"""All weights of a model in fp32, with the moments in main memory, in bf16, and both: bits, bytes, seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.common import Json, Place, median, steps_of

KILL = [{"name": "kill", "when": {"attempt": 1, "step": 5, "phase": "optimizer"}, "effect": "kill"}]
WAYS = {
    "fp32": {},
    "away": {"offload": "optimizer"},
    "bf16": {"weights": "bf16"},
    "both": {"weights": "bf16", "offload": "optimizer"},
}


def run(place: Place) -> None:
    rows = place.rows("qwen0.5b", 256, (64, 128))
    steps = {"steps": place.steps(10, 8), "deterministic": True, "lr": 1e-5}
    ways = {name: place.config("qwen0.5b", rows, adapter={"type": "full", "dropout": 0.0}, train=steps | way) for name, way in WAYS.items()}
    found = {name: _trained(place, name, config) for name, config in ways.items()}
    killed = _trained(place, "both-killed", ways["both"], KILL)
    place.answer("finished", [one["status"] for one in (*found.values(), killed)])
    digest = {name: one.get("artifact_sha256") for name, one in found.items()}
    place.answer("away-bits", digest["away"] is not None and digest["away"] == digest["fp32"])
    place.answer("both-bits", digest["both"] is not None and digest["both"] == digest["bf16"])
    place.answer("both-killed", digest["both"] is not None and digest["both"] == killed.get("artifact_sha256"))
    losses = {name: [row["loss"] for row in steps_of(one)] for name, one in found.items()}
    apart = [abs(a - b) / a for a, b in zip(losses["fp32"], losses["bf16"], strict=False)]
    place.answer("bf16-near", max(apart, default=None), "largest difference of a step's loss, of it")
    peaks = {name: max((row["peak_bytes"] for row in steps_of(one)), default=0) for name, one in found.items()}
    place.answer("peaks", {name: round(peak / 2**30, 2) for name, peak in peaks.items()}, "GiB")
    share = peaks["both"] / peaks["fp32"] if peaks["fp32"] and not place.smoke else None
    place.answer("both-peak", share, "not judged: the model is smaller than what an update needs beside it" if place.smoke else "")
    seconds = {name: [row["seconds"] for row in steps_of(one)[3:]] for name, one in found.items()}
    place.answer("seconds", {name: round(median(of), 3) if of else None for name, of in seconds.items()}, "a step, median")


def _trained(place: Place, name: str, config: Json, faults: list[Json] | None = None) -> Json:
    """Return the summary of a run whose weights are removed again: five of them fill a small disk."""
    summary = place.train(name, config, faults)
    for part in ("checkpoints", "model"):
        shutil.rmtree(Path(summary["folder"]) / part, ignore_errors=True)
    if summary.get("reason"):
        print(name, summary["status"], summary["reason"], flush=True)
    return summary
