"""A setting under which a step raises: the lab finds the other one by experiment. `how`: what the fault does to the card."""

from __future__ import annotations

from pathlib import Path

from stages.common import Place, lines
from stages.lab_row import SMALL, broken


def run(place: Place, how: str = "") -> None:
    config = place.config("test", place.rows("test", 128, (32, 64, 96)), train=SMALL, run={"standby": False})
    fault = {"name": "setting", "when": {"step": 5, "setting": {"attention": "sdpa"}}, "effect": "raise"}
    fault["message"] = "CUDA error: an illegal memory access was encountered"
    found = place.train("setting", config, [fault], timeout_s=210, env=broken(place, how) if how else None)
    place.answer("finished", found["status"], str(found.get("reason") or ""))
    timeline = lines(Path(found["folder"]) / "timeline.jsonl")
    changed = [entry for entry in timeline[1:] if entry.get("settings", {}).get("attention") == "eager"]
    place.answer("setting", bool(changed), "; ".join(f"{entry['settings']}: {entry['reason']}" for entry in timeline[1:])[:500])
    place.answer("nobody-accused", [row["line"] for row in found.get("quarantined", [])])
