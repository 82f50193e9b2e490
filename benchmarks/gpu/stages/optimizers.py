"""Every optimizer beside the usual one: does it finish on the card, and leave the same bits after a kill in its update."""

from __future__ import annotations

from stages.common import Json, Place

OPTIMIZERS = ("paged", "adamw8bit", "schedule_free", "adafactor", "lion", "muon", "sgd")
IN_A_REHEARSAL = ("schedule_free", "muon")  # bitsandbytes has no kernels for the simulated card
KILL = [{"name": "kill", "when": {"attempt": 1, "step": 4, "phase": "optimizer"}, "effect": "kill"}]


def run(place: Place) -> None:
    rows = place.rows("qwen0.5b", 64, (64, 128))
    ended, other = {}, []
    for name in IN_A_REHEARSAL if place.smoke else OPTIMIZERS:
        config: Json = place.config("qwen0.5b", rows, train={"optimizer": name, "steps": 6, "deterministic": True})
        plain, killed = place.train(name, config), place.train(f"{name}-killed", config, KILL)
        ended[name] = [plain["status"], killed["status"]]
        if plain.get("artifact_sha256") is None or plain["artifact_sha256"] != killed.get("artifact_sha256"):
            other.append(name)
        print(name, ended[name], other, flush=True)
    place.answer("finished", sorted({status for pair in ended.values() for status in pair}), str(ended))
    place.answer("killed", other, f"of {', '.join(ended)}")
