"""Less memory than the run needs: micro-batches are split, nothing else changes, and the memory watch stays quiet afterwards."""

from __future__ import annotations

from stages.common import Place, events, steps_of


def run(place: Place) -> None:
    rows = place.rows("qwen0.5b", 320, (256, 512))
    train = {"steps": place.steps(36, 20), "effective_batch": 16, "micro_batch_tokens": 8192, "deterministic": True}
    config = place.config("qwen0.5b", rows, train=train)
    free = place.train("free", config)
    peak = max((row["peak_bytes"] for row in steps_of(free)), default=0)
    place.answer("free", free["status"], f"peak {peak / 1e9:.2f} GB")
    fixed = int(0.7 * peak)
    tight = place.train("tight", config | {"train": config["train"] | {"memory_limit": fixed}})
    changes = events(tight, "setting_changed")
    place.answer("tight", tight["status"], f"limit {fixed / 1e9:.2f} GB; {tight.get('reason') or ''}")
    splits = [event["what"] for event in changes if "micro_batch_tokens" in event["what"]]
    place.answer("splits", len(splits), "; ".join(splits)[:600])
    later = [event["what"] for event in changes if "micro_batch_tokens" in event["what"] and _step(event["what"]) > 2]
    place.answer("quiet", len(later), "; ".join(later)[:400])
    pairs = list(zip(steps_of(free), steps_of(tight), strict=False))
    place.answer("same-loss", max((abs(a["loss"] - b["loss"]) / a["loss"] for a, b in pairs), default=None), "largest, relative")


def _step(what: str) -> int:
    """micro_batch_tokens 280 -> 137 from step 2 on"""
    words = what.split()
    return int(words[words.index("step") + 1]) if "step" in words else 0
