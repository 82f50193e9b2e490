"""fp16 with its loss scale, near the same run in bf16 and the same bits after a kill; and a scalar head that orders pairs."""

from __future__ import annotations

import json

from stages.common import Place, steps_of

KILL = [{"name": "kill", "when": {"attempt": 1, "step": 5, "phase": "backward"}, "effect": "kill"}]


def run(place: Place) -> None:
    rows = place.rows("qwen0.5b", 256)
    steps = {"steps": place.steps(12, 8), "deterministic": True}
    plain = place.train("bf16", place.config("qwen0.5b", rows, train=steps))
    config = place.config("qwen0.5b", rows, train=steps | {"precision": "fp16"})
    halves, killed = place.train("fp16", config), place.train("fp16-killed", config, KILL)
    place.answer("fp16-finished", [halves["status"], killed["status"]])
    losses = [[row["loss"] for row in steps_of(one)] for one in (plain, halves)]
    place.answer("fp16-near", max(abs(a - b) / a for a, b in zip(*losses, strict=False)), "largest difference of a step's loss, of it")
    place.answer("fp16-skipped", sum(bool(row["skipped"]) for row in steps_of(halves)), f"of {len(losses[1])} steps")
    place.answer("fp16-killed", halves.get("artifact_sha256") is not None and halves["artifact_sha256"] == killed.get("artifact_sha256"))
    pairs = place.out / "pairs.jsonl"
    made = [{"prompt": f"Join {at}", "chosen": f"amber-{at}", "rejected": f"no {at}"} for at in range(64)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in made))
    train = {"objective": "reward", "steps": 40, "lr": 1e-3, "deterministic": True}
    head = place.config("qwen0.5b", pairs, train=train, data={"held_out": 0.2})
    found = place.train("reward", head)
    place.answer("reward-orders", (found.get("metrics") or {}).get("pair_accuracy"), found.get("says") or found["status"])
