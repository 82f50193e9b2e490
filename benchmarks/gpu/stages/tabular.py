"""A network on a table: trained on the card, the same bits after a kill."""

from __future__ import annotations

import importlib.util
import random

from stages.common import Json, Place, settings_of


def run(place: Place) -> None:
    if importlib.util.find_spec("polars") is None:
        for question in ("finished", "device", "killed"):
            place.answer(question, None, "polars is not installed")
        return
    draw, table = random.Random(0), place.out / "table.csv"
    values = [[draw.gauss(0, 1) for _ in range(8)] for _ in range(2000)]
    lines = [",".join(f"{x:.6g}" for x in (*row, 2 * row[0] - row[1] + draw.gauss(0, 0.3))) for row in values]
    table.write_text("\n".join([",".join([*(f"x{number}" for number in range(8)), "y"]), *lines]) + "\n")
    config: Json = {
        "task": "tabular",
        "data": {"files": str(table), "held_out": 0.2},
        "table": {"target": "y"},
        "network": {"exports": []},
        "train": {"steps": place.steps(300, 20), "deterministic": True},
    }
    plain = place.train("plain", config)
    place.answer("finished", plain["status"], str(plain.get("reason") or ""))
    place.answer("device", settings_of(plain).get("device"), "as its timeline has it")
    kill = {"name": "kill", "when": {"attempt": 1, "step": 10, "phase": "backward"}, "effect": "kill"}
    killed = place.train("killed", config, [kill])
    sha = plain.get("artifact_sha256")
    place.answer("killed", sha is not None and sha == killed.get("artifact_sha256"), f"attempts: {killed.get('attempts')}")
