"""The base model in 4 and 8 bits by bitsandbytes' own kernels: proven against its 16-bit weights, and killed."""

from __future__ import annotations

import importlib.util
from typing import Any

from stages.common import Json, Place, settings_of, steps_of

KINDS = ("nf4", "fp4", "int8")


def run(place: Place) -> None:
    if importlib.util.find_spec("bitsandbytes") is None:
        for question in ("finished", "kept", "loss-apart", "killed", "as-held"):
            place.answer(question, None, "bitsandbytes is not installed")
        return
    rows = place.rows("qwen0.5b", 64)

    def trained(name: str, frozen: str, faults: list[Json] | None = None) -> Json:
        train = {"frozen": frozen, "steps": 4, "deterministic": True}
        return place.train(name, place.config("qwen0.5b", rows, train=train), faults)

    wide, first = trained("half", "half"), trained("nf4", "nf4")
    killed = trained("killed", "nf4", [{"name": "kill", "when": {"attempt": 1, "step": 3, "phase": "backward"}, "effect": "kill"}])
    place.answer("as-held", *_as_held(str(place.model("qwen0.5b")), first))
    shas = [found.get("artifact_sha256") for found in (first, killed)]
    place.answer("killed", shas[0] is not None and shas[0] == shas[1], f"attempts: {killed.get('attempts')}")
    held = [first, *(trained(kind, kind) for kind in KINDS[1:])]
    place.answer("finished", [found["status"] for found in held], str([found.get("reason") for found in held]))
    place.answer("kept", [settings_of(found).get("frozen") for found in held], "what the proof at the start left of each")
    losses = [next((row["loss"] for row in steps_of(found)), None) for found in (wide, *held)]
    known = None not in losses
    place.answer("loss-apart", max(abs(loss / losses[0] - 1) for loss in losses) if known else None, str(losses))


def _as_held(model: str, found: Json) -> tuple[str | None, str]:
    """Return the bits in which the run's model is loaded to answer where 0.85 of what 16 bits take may be taken, and what was told."""
    import torch

    from holdfast.trainer.common.device import release
    from holdfast.trainer.model.place import at_first_that_fits, places
    from holdfast.trainer.model.plain import load_plain

    if not torch.cuda.is_available() or found["status"] != "finished":
        return None, "no card" if found["status"] == "finished" else "no run"

    def asked(place: Any) -> float:
        loaded = load_plain(model, f"{found['folder']}/adapter", *place)
        with torch.inference_mode():
            return float(loaded(input_ids=torch.arange(3, 67, device=place.device)[None], use_cache=False).logits.float().abs().max())

    torch.cuda.reset_peak_memory_stats()
    wide = asked(places()[0])
    most = torch.cuda.max_memory_allocated()
    release()
    left, told = places({"kind": "nf4", "double": False, "dtype": settings_of(found)["dtype"]}, quick=True), list[str]()
    torch.cuda.set_per_process_memory_fraction(0.85 * most / torch.cuda.get_device_properties(0).total_memory)
    try:
        few = at_first_that_fits(left, asked, told.append)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return left[0].held.weights.kind if left[0].held else "none", f"largest logit {few:.4g}, {wide:.4g} in 16 bits; {'; '.join(told)[:300]}"
