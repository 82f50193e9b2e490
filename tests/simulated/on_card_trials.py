"""`python on_card_trials.py RUN` with the simulated card: the trials' process itself. Run by test_lab.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import simulated_card as card
import torch

from holdfast.base.files import read_json
from holdfast.experiments.replay import TrialChange, new_trial
from holdfast.run.folder import RunFolder
from holdfast.trainer.jobs.trial import _Stage

STEP = 4
EAGER = {"attention": "eager"}


class Tried:
    def __init__(self, run: RunFolder) -> None:
        self.run, self.stage = run, _Stage(run)

    def __call__(self, **change: Any) -> dict[str, Any]:
        folder = new_trial(self.run, STEP, TrialChange(**change))
        self.stage.replay(folder)
        return (read_json(folder / "outcome.json") or {}) | {"begun": (folder / "running.json").exists()}


def one_model_at_a_time(tried: Tried) -> None:
    assert tried()["finite"]
    held = card.now()
    assert tried(settings=EAGER)["finite"] and tried()["finite"]
    assert card.now() <= 1.1 * held, "the other model is still there"


def kernels_of_the_run(tried: Tried) -> None:
    assert not tried()["deterministic"] and not torch.are_deterministic_algorithms_enabled()
    assert tried(deterministic=True)["deterministic"] and torch.are_deterministic_algorithms_enabled()
    assert not tried()["deterministic"] and not torch.are_deterministic_algorithms_enabled()


def no_room_for_the_model(tried: Tried) -> None:
    card.limit(card.now() // 4)
    full = tried(settings=EAGER)
    assert full["ending"].startswith("out of memory: CUDA out of memory")
    assert not full["begun"] and "leaving" not in full
    card.limit(card.TOTAL)
    assert tried(settings=EAGER)["finite"], "the process has outlived it"


def a_broken_context(tried: Tried) -> None:
    card.fail("an illegal memory access was encountered")
    failed = tried(trace=True)
    assert "illegal memory access" in failed["ending"] and failed["leaving"]


if __name__ == "__main__":
    trials = Tried(RunFolder(Path(sys.argv[1])))
    one_model_at_a_time(trials)
    kernels_of_the_run(trials)
    no_room_for_the_model(trials)
    a_broken_context(trials)
    print("all of it")
