"""A card that the second trainer of a run does not find: nothing is computed elsewhere, and the run goes on when it is back."""

from __future__ import annotations

import json
from pathlib import Path

from stages.common import Place, steps_of
from stages.lab_row import SMALL, broken


def run(place: Place) -> None:
    config = place.config("test", place.rows("test", 128, (32, 64, 96)), train=SMALL, run={"standby": False, "device_s": 3})
    kill = {"name": "kill", "when": {"attempt": 1, "step": 4, "phase": "backward"}, "effect": "kill"}
    gone = place.environment(gone_after=1) if place.smoke else broken(place, "gone")
    found = place.train("gone", config, [kill], timeout_s=90, env=gone)
    rows = steps_of(found)
    first, later = ([row for row in rows if (row["attempt"] == 1) == wanted] for wanted in (True, False))
    place.answer("before", len(first), str(found["status"]))
    place.answer("on-another-device", len(later))
    folder = Path(found["folder"])
    told = str(found.get("reason") or "") + (folder / "events.jsonl").read_text()
    place.answer("told", "device_gone" in told or "no GPU" in told, str(found.get("reason") or "")[:300])
    done = place.holdfast("train", folder.parent / "gone.yaml", "--run", folder, "--json", "--quiet", timeout_s=90)
    place.answer(
        "goes-on", json.loads(done.stdout.strip().splitlines()[-1])["status"] if done.stdout.strip() else f"exit code {done.returncode}"
    )
