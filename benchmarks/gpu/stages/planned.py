"""What `holdfast plan` says before there is a run, beside what the allocator of the card counted at the run's most."""

from __future__ import annotations

import json
from pathlib import Path

from stages.common import Json, Place, events

SHAPES: dict[str, Json] = {
    "plain": {},
    "recomputed": {"train": {"checkpointed_layers": 1000}},
    "nothing-frozen": {"adapter": {"type": "full", "dropout": 0.0}},
}


def run(place: Place) -> None:
    shares, told = [], []
    for name, sections in SHAPES.items():
        longest = place.rows("qwen0.5b", 32, (512,))  # what is planned for: rows of train.max_tokens, every token learned
        config = place.config("qwen0.5b", longest, data={"train_on": "all"}, **sections)
        config["train"] |= {"steps": 4} | ({"attention": "eager"} if place.smoke else {})
        found = place.train(name, config)
        file = Path(found["folder"]).with_suffix(".yaml")
        done = place.holdfast("plan", file, "--json")
        if found["status"] != "finished" or not done.stdout.strip():
            told.append(f"{name}: the run {found['status']}, exit code {done.returncode} of the plan")
            continue
        counted = json.loads(done.stdout)["bytes"]
        planned = sum(size for kind, size in counted.items() if kind not in ("context", "snapshot", "allocator"))
        shares.append(found["peak_bytes"] / planned)
        own = events(found, "memory_compared")[-1]
        told.append(f"{name}: {found['peak_bytes']:,} of {planned:,}; by the run's own plan {own['planned_bytes']:,}")
    if place.smoke:
        told.insert(0, "not judged: nothing compiles Triton's kernels for the simulated card, and attention is eager there")
    judged = shares if not place.smoke else []
    place.answer("under-plan", round(max(judged), 3) if judged else None, "; ".join(told))
    place.answer("over-plan", round(min(judged), 3) if judged else None, "the shape the plan exaggerates most")
