"""The rate of each step is that of transformers' schedules, whatever lies between two steps: a kill, more steps, another rate."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import get_scheduler

from holdfast.config.train import Train
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_at
from holdfast.trainer.step.training_state import TrainingState
from support.rounding import but_for_rounding

THEIRS = {"cosine": "cosine", "linear": "linear", "constant": "constant_with_warmup"}
PEAK, SHARE = 2e-3, 0.25  # of all steps, in which the rate rises
# What happens to a run of 40 steps: from which step on which settings hold.
CHANGES: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "nothing": [],
    "more steps from the middle of the decay on": [(23, {"steps": 64})],
    "more steps behind the last one": [(41, {"steps": 60})],
    "so many more that the rate rises again": [(41, {"steps": 400})],
    "half the rate in the warm-up": [(6, {"lr_factor": 0.5})],
    "half the rate, then more steps, then another rate": [(15, {"lr_factor": 0.5}), (31, {"steps": 80}), (52, {"lr_factor": 0.35})],
}


def rates_of_transformers(schedule: str, steps: int) -> list[float]:
    """The rates of all steps: theirs, whose warm-up begins one step earlier here, because theirs begins with a step at rate 0."""
    warm = round(SHARE * steps)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=PEAK)
    scheduler, found = get_scheduler(THEIRS[schedule], optimizer, num_warmup_steps=warm, num_training_steps=steps), list[float]()
    for _ in range(steps):
        found += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return found[1 : warm + 1] + found[warm:]


@pytest.mark.parametrize("schedule", THEIRS)
@pytest.mark.parametrize("name", CHANGES)
def test_each_step_has_its_rate_whatever_process_computes_it(name: str, schedule: str, tmp_path: Path) -> None:
    timeline, first = tmp_path / "timeline.jsonl", {"steps": 40, "samples": 40, "micro_batch_tokens": 1, "threads": 1}
    add_entry(timeline, Entry(1, first))
    train = Train(lr=PEAK, schedule=schedule, warmup=SHARE)  # type: ignore[arg-type]

    def begun(step: int) -> Any:
        """What a process knows that begins with `step`: what is on the disk by then."""
        entries = read_timeline(timeline)
        return SimpleNamespace(job=SimpleNamespace(config=SimpleNamespace(train=train), settings=lambda at: settings_at(entries, at)))

    now = {"steps": 40, "lr_factor": 1.0}
    whole = {steps: rates_of_transformers(schedule, steps) for steps in {40} | {dict(now | change)["steps"] for _, change in CHANGES[name]}}
    step, wanted, found = 0, list[float](), list[float]()
    going_on, coming = begun(1), dict(CHANGES[name])
    while step < now["steps"] or step + 1 in coming:
        step += 1
        if step in coming:
            add_entry(timeline, Entry(step, coming[step]))
            now |= coming[step]
            going_on = begun(step)
        wanted.append(now["lr_factor"] * whole[int(now["steps"])][step - 1])
        found.append(TrainingState.learning_rate(begun(step), step))
        assert TrainingState.learning_rate(going_on, step) == found[-1], "a run that was not killed has another rate"
    assert len(found) == now["steps"] and found == but_for_rounding(wanted, 8, torch.float64, condition=PEAK / min(wanted))
    again = begun(step)
    assert [TrainingState.learning_rate(again, at) for at in range(1, step + 1)] == found, "steps are replayed at the rate they had"
