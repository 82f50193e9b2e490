"""What is made of a run on a machine with a card: measured beside its base, and merged into a model that is proven equal."""

from __future__ import annotations

import json
import shutil

from stages.common import Place


def run(place: Place) -> None:
    config = place.config("qwen0.5b", place.rows("qwen0.5b", 128), data={"held_out": 0.2})
    config["train"]["steps"] = 6
    found = place.train("trained", config)
    verified = place.holdfast("verify", found["folder"], "--generate", 2, "--longest", 8, "--json")
    verdict = json.loads(verified.stdout) if verified.stdout.strip() else {}
    place.answer("verified", bool(verdict.get("loads") and verdict.get("infers")), str(verdict.get("verdict") or verified.stderr[-300:]))
    out = place.out / "merged"
    shutil.rmtree(out, ignore_errors=True)
    done = place.holdfast("export", found["folder"], "--to", "merged", "--out", out, "--json")
    checked = json.loads(done.stdout).get("checked", {}) if done.stdout.strip() else {}
    place.answer("merged", done.returncode, done.stderr[-300:] if done.returncode else "")
    place.answer("nmse", checked.get("nmse"), f"KL {checked.get('kl_per_token')} nats a token, by {checked.get('engine')}")
