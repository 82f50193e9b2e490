"""A row whose kernel fails a device-side assert: the lab finds it, and the run goes on without it."""

from __future__ import annotations

from stages.common import Json, Place, events, steps_of

SMALL: Json = {"steps": 8, "effective_batch": 8, "max_tokens": 256, "precision": "auto"}


def run(place: Place) -> None:
    config = place.config("test", place.rows("test", 128, (32, 64, 96)), train=SMALL, run={"standby": False})
    first = place.train("undisturbed", config)
    place.answer("undisturbed", first["status"])
    number = steps_of(first)[4]["samples"][3]
    fault = {"name": "poisoned", "when": {"sample": f"{config['data']['files']}:{number + 1}"}, "effect": "raise"}
    fault["message"] = "CUDA error: device-side assert triggered"
    found = place.train("poisoned", config, [fault], timeout_s=210, env=broken(place, "assert"))
    place.answer("finished", found["status"], str(found.get("reason") or ""))
    lines = [row["line"] for row in found.get("quarantined", [])]
    place.answer("row", lines == [number + 1], f"quarantined {lines}, poisoned {number + 1}")
    place.answer("trials", _trials(found), "; ".join(str(event) for event in events(found, "lab_verdict"))[:500])


def broken(place: Place, how: str) -> dict[str, str]:
    """Faults that raise break the card's context instead: by a kernel of ours (inject/), or by the simulated card."""
    import os

    from stages.common import ROOT

    given = place.environment(late=True)
    paths = [str(ROOT / "benchmarks" / "gpu" / "inject"), given.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))]
    return given | {"HOLDFAST_CONFIDENCE_BREAKS": how, "PYTHONPATH": os.pathsep.join(paths)}


def _trials(summary: Json) -> int:
    from pathlib import Path

    return len(list(Path(summary["folder"]).glob("**/outcome.json")))
