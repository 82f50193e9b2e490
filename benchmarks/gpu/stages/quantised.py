"""The base model in 4 and 8 bits by bitsandbytes' own kernels: proven against its 16-bit weights, and killed."""

from __future__ import annotations

import importlib.util

from stages.common import Json, Place, settings_of, steps_of

KINDS = ("nf4", "fp4", "int8")


def run(place: Place) -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        for question in ("finished", "kept", "loss-apart", "killed"):
            place.answer(question, None, "bitsandbytes is not installed")
        return
    rows = place.rows("qwen0.5b", 64)

    def trained(name: str, frozen: str, faults: list[Json] | None = None) -> Json:
        train = {"frozen": frozen, "steps": 4, "deterministic": True}
        return place.train(name, place.config("qwen0.5b", rows, train=train), faults)

    wide, first = trained("half", "half"), trained("nf4", "nf4")
    killed = trained("killed", "nf4", [{"name": "kill", "when": {"attempt": 1, "step": 3, "phase": "backward"}, "effect": "kill"}])
    shas = [found.get("artifact_sha256") for found in (first, killed)]
    place.answer("killed", shas[0] is not None and shas[0] == shas[1], f"attempts: {killed.get('attempts')}")
    held = [first, *(trained(kind, kind) for kind in KINDS[1:])]
    place.answer("finished", [found["status"] for found in held], str([found.get("reason") for found in held]))
    place.answer("kept", [settings_of(found).get("frozen") for found in held], "what the proof at the start left of each")
    losses = [next((row["loss"] for row in steps_of(found)), None) for found in (wide, *held)]
    known = None not in losses
    place.answer("loss-apart", max(abs(loss / losses[0] - 1) for loss in losses) if known else None, str(losses))
