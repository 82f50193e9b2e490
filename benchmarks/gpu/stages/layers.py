"""Frozen layers in main memory (train.offload: layers): the bits, the bytes and the seconds of runs with and without, and one killed."""

from __future__ import annotations

import importlib.util
import statistics

from stages.common import Json, Place, steps_of


def run(place: Place) -> None:
    rows = place.rows("qwen0.5b", 64)

    def trained(name: str, offload: str, frozen: str = "auto", faults: list[Json] | None = None) -> Json:
        train = {"offload": offload, "frozen": frozen, "steps": 6, "deterministic": True}
        return place.train(name, place.config("qwen0.5b", rows, train=train), faults)

    whole, away = trained("whole", "off"), trained("away", "layers")
    place.answer("finished", [whole["status"], away["status"]], str(away.get("reason") or ""))
    sha = whole.get("artifact_sha256")
    place.answer("same-bits", sha is not None and sha == away.get("artifact_sha256"))
    peaks = [found.get("peak_bytes") or 0 for found in (whole, away)]
    place.answer("bytes-less", peaks[0] - peaks[1] if all(peaks) else None, f"{peaks[1]:,} of {peaks[0]:,}")
    seconds = [[row["seconds"] for row in steps_of(found)][1:] for found in (whole, away)]
    medians = [statistics.median(one) for one in seconds if one]
    place.answer("slower", round(medians[1] / medians[0], 2) if len(medians) == 2 else None, f"{medians} s a step")
    killed = trained(
        "killed", "layers", faults=[{"name": "kill", "when": {"attempt": 1, "step": 3, "phase": "backward"}, "effect": "kill"}]
    )
    place.answer("killed", sha is not None and sha == killed.get("artifact_sha256"), f"attempts: {killed.get('attempts')}")
    if place.smoke or importlib.util.find_spec("bitsandbytes") is None:
        place.answer("nf4-bits", None, "bitsandbytes is not installed, or not for the simulated card")
        return
    shas = [trained(f"nf4-{offload}", offload, "nf4").get("artifact_sha256") for offload in ("off", "layers")]
    place.answer("nf4-bits", shas[0] is not None and shas[0] == shas[1])
