"""The same bits: undisturbed twice, killed twice, and one step replayed, with deterministic kernels."""

from __future__ import annotations

import json
from pathlib import Path

from stages.common import Json, Place, events, steps_of

KILLS = [(1, 0.3, "backward"), (2, 0.6, "snapshot")]  # attempt, share of the run, where


def run(place: Place, deterministic: bool = True) -> None:
    config = place.config("qwen0.5b", place.rows("qwen0.5b", 256), train={"deterministic": deterministic})
    first, second = (place.train(name, config) for name in ("first", "second"))
    place.answer("finished", [first["status"], second["status"]])
    place.answer("undisturbed", first.get("artifact_sha256") is not None and first["artifact_sha256"] == second.get("artifact_sha256"))
    step = [round(share * config["train"]["steps"]) for _, share, _ in KILLS]
    faults = [
        {"name": f"kill {attempt}", "when": {"attempt": attempt, "step": at, "phase": phase}, "effect": "kill"}
        for (attempt, _, phase), at in zip(KILLS, step, strict=True)
    ]
    killed = place.train("killed", config, faults)
    deaths = len(events(killed, "attempt_ended"))
    place.answer("killed-attempts", killed.get("attempts"), f"{deaths} attempts ended, status {killed['status']}")
    place.answer("killed", killed.get("artifact_sha256") is not None and killed["artifact_sha256"] == first.get("artifact_sha256"))
    losses = [[row["loss"] for row in steps_of(one)] for one in (first, second, killed)]
    place.answer("losses", max(abs(a - b) for a, b in zip(losses[0], losses[2], strict=False)), "largest difference of a step's loss")
    if deterministic:
        place.answer(*_replayed(place, first, step[0]))


def _replayed(place: Place, summary: Json, step: int) -> tuple[str, bool, str]:
    found = [json.loads(place.holdfast("trial", Path(summary["folder"]), "--step", step, "--json").stdout) for _ in range(2)]
    hashes = [one.get("weights_sha256") for one in found]
    row = next(row for row in steps_of(summary) if row["step"] == step)
    same = hashes[0] is not None and hashes[0] == hashes[1] and found[0]["loss"] == row["loss"]
    return "replayed", same, f"loss {found[0]['loss']} and {row['loss']} in the run"
