"""Where a step's time goes: torch.profiler's table, launches, and the share of it the card is idle."""

from __future__ import annotations

import time
from typing import Any

from stages import training
from stages.common import Place

STEPS = 3


def run(place: Place) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    stand = training.build(place, "qwen0.5b", 8192, dropout=0.05)
    for number in (1, 2):
        stand.step(number)
    real = torch.cuda.is_available() and not place.smoke
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if real else [])]
    training.synchronise()
    began = time.perf_counter()
    with profile(activities=kinds) as seen:
        for number in range(3, 3 + STEPS):
            stand.step(number)
        training.synchronise()
    wall_ms = 1e3 * (time.perf_counter() - began) / STEPS
    found = seen.key_averages()
    by = "self_device_time_total" if real else "self_cpu_time_total"
    place.kept("profile-0.5b.txt").write_text(found.table(sort_by=by, row_limit=40, max_name_column_width=80))
    place.answer("step-ms", round(wall_ms, 2), "under the profiler")
    if not real:
        place.answer("idle", None, "no card")
        place.answer("kernels", None, "no card")
        return
    on_card = [event for event in seen.events() if str(getattr(event, "device_type", "")).endswith("CUDA") and not _is_note(event)]
    busy_ms = _covered([(event.time_range.start, event.time_range.end) for event in on_card]) / 1e3 / STEPS
    place.answer("kernels", len(on_card) // STEPS, "kernels and copies a step")
    place.answer("idle", round(max(0.0, 1 - busy_ms / wall_ms), 3), f"{busy_ms:.1f} ms of kernels in {wall_ms:.1f} ms")


def _is_note(event: Any) -> bool:
    """A range that a program named, and no kernel."""
    return bool(getattr(event, "is_user_annotation", False)) or event.name.startswith(("Optimizer.", "ProfilerStep"))


def _covered(spans: list[tuple[float, float]]) -> float:
    """The length of what the spans cover together; they may overlap."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
