"""Do one experiment for each folder named on standard input: read its request.json, leave its outcome.json. Trains no run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from holdfast.base.errors import BLOCKED, DONE, error_message
from holdfast.base.files import Json, read_json, write_json
from holdfast.config.config import Config
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, settings_of_process
from holdfast.trainer.common.device import forget_peak, release
from holdfast.trainer.common.job import Job, open_job
from holdfast.trainer.common.oom import OutOfMemory, is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.jobs.laboratory.course import course
from holdfast.trainer.jobs.laboratory.products import products
from holdfast.trainer.jobs.laboratory.start import start_facts
from holdfast.trainer.step.training_state import TrainingState, build
from holdfast.trainer.tasks import task_of

_OF_PYTHON = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, MemoryError, ImportError, AttributeError)
_KINDS: dict[str, Callable[[TrainingState, Json, Path], Json]] = {"start": start_facts, "course": course, "products": products}


def host_experiments(path: Path) -> int:
    """Do one experiment per line of standard input; exit after an error on a GPU, whose context cannot be trusted."""
    for line in sys.stdin:
        folder = Path(line.strip())
        outcome = _do_experiment(RunFolder(path), folder)
        write_json(folder / "outcome.json", outcome)
        release()
        if outcome.get("leaving"):
            return BLOCKED
    return DONE


def _do_experiment(run: RunFolder, folder: Path) -> Json:
    request = read_json(folder / "request.json") or {}
    request["peak_forgotten"] = forget_peak()  # the experiment before this one may have taken more
    try:
        job = open_job(run, request["attempt"], folder, request)
        job.config = changed_config(job.config, request.get("config") or {})
        return _KINDS[request["kind"]](_state(job, request), request, folder) | {"ending": "finished"}
    except (OutOfMemory, Refusal, *_OF_PYTHON) as error:
        if is_out_of_memory(error):
            words = str(error).splitlines() or [type(error).__name__]
            return {"ending": f"out of memory: {words[0][:300]}"}
        leaving = {"leaving": True} if torch.cuda.is_initialized() else {}  # type: ignore[no-untyped-call]
        return {"ending": error_message(error)} | leaving


def _state(job: Job, request: Json) -> TrainingState:
    """Build the training state before the first step under the request's settings, as a run does, which settles and proves first.

    prove: also proves kernels and layout, and takes back what computes something else, as a run does when it starts.
    """
    asked = dict(request.get("settings") or {})
    asked |= {"device": asked.get("device", settings_of_process(job.timeline).device)}
    asked |= {"deterministic": True} if request.get("deterministic") else {}
    job.timeline.append(Entry(1, asked, "an experiment"))
    if request.get("settle"):
        changes, reason = task_of(job.config).settle(job.config, job.settings(1))
        _take(job, changes, reason)
    job.point("start")
    training = build(job, job.settings(1))
    if request.get("prove"):
        for _ in range(8):
            changes, reason = training.task.prove()
            if not changes:
                break
            _take(job, changes, reason)
            del training
            release()
            training = build(job, job.settings(1))
    write_json(job.folder / "running.json", {"settings": training.settings.as_json()}, durable=False)
    return training


def _take(job: Job, changes: Json, reason: str) -> None:
    if changes:
        job.timeline.append(Entry(1, changes, reason))


def changed_config(config: Config, changes: dict[str, Any]) -> Config:
    """Return the config with values at dotted keys replaced."""
    if not changes:
        return config
    tree = config.model_dump(mode="json")
    for name, value in changes.items():
        *above, last = name.split(".")
        place = tree
        for part in above:
            place = place[part]
        place[last] = value
    return Config.model_validate(tree)
