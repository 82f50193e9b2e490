"""Tokens a second beside other trainers: run.py, as it would be called by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import time

from stages.common import ROOT, Json, Place, lines


def run(place: Place, size: str = "qwen0.5b", steps: int = 20, patience_s: float = 95) -> None:
    if place.smoke and size != "qwen0.5b":
        for question in ("ours", "beside"):
            place.answer(question, None, "in a rehearsal all sizes are the smallest one, which the speed stage asked")
        return
    out = place.out / f"race-{time.time_ns()}"
    out.mkdir()
    place.model(size)
    (out / "models").symlink_to(place.out / "models")
    command = [
        sys.executable,
        str(ROOT / "benchmarks/gpu/run.py"),
        "--out",
        str(out),
        "--steps",
        str(steps),
        "--sizes",
        size,
        "--timeout",
        "100",
    ]
    child = subprocess.Popen([*command, *(["--smoke"] if place.smoke else [])], env=place.environment(), stdin=subprocess.DEVNULL)
    try:
        child.wait(900 if place.smoke else patience_s)
    except subprocess.TimeoutExpired:
        child.kill()  # what ran before is in results.jsonl
    table = out / "tables.md"
    if table.exists():
        place.kept(f"race-{size}.md").write_text(table.read_text())
    best: dict[str, float] = {}
    for file in out.glob("runs-*/results.jsonl"):
        for row in lines(file):
            if row["steady_s"]:
                best[row["contender"]] = round(row["steady_tokens"] / row["steady_s"], 1)
    place.answer("ours", best.get("holdfast"), json.dumps(best) + f" tokens/s; exit code {child.wait()}")
    place.answer("beside", _beside(best), "holdfast over the fastest other that ran")


def _beside(best: Json) -> float | None:
    others = [speed for name, speed in best.items() if not name.startswith("holdfast")]
    return round(best["holdfast"] / max(others), 3) if others and best.get("holdfast") else None
