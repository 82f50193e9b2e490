"""Replay steps of a run in a process of its own, some of their samples or all, as it was or with changed settings. Writes only outcomes."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from holdfast.base.errors import BLOCKED, DONE, error_message
from holdfast.base.files import Json, read_json, write_json
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_file import MemoryFile, Snapshot
from holdfast.run.timeline import Entry, settings_of_process
from holdfast.trainer.common.device import prepare_torch, release
from holdfast.trainer.common.images import ABSURD
from holdfast.trainer.common.job import Job, open_job
from holdfast.trainer.common.oom import OutOfMemory, is_out_of_memory
from holdfast.trainer.common.refuse import Refusal, broken_weights
from holdfast.trainer.jobs.trace import traced
from holdfast.trainer.loop.announce import Announcer
from holdfast.trainer.state.restore import find_state
from holdfast.trainer.state.sound import damage, difference
from holdfast.trainer.step.step import Announce, gradients_sha256
from holdfast.trainer.step.training_state import TrainingState, build

_OF_PYTHON = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, MemoryError)


def trial(path: Path, folder: Path) -> int:
    """Do what `folder`/request.json asks for and leave `folder`/outcome.json."""
    return DONE if _Stage(RunFolder(path)).replay(folder) else BLOCKED


def host_trials(path: Path) -> int:
    """Replay for each folder named on a line of standard input, until that ends; the model is loaded once.

    After an error on a GPU its context cannot be trusted: the outcome says that this process is leaving.
    """
    stage = _Stage(RunFolder(path))
    for line in sys.stdin:
        stage.replay(Path(line.strip()))
        if stage.leaving:
            return BLOCKED
    return DONE


@dataclass
class _State:
    """The state before a step, and how it was come by."""

    step: int
    timeline: list[Entry]
    snapshot: Snapshot
    recomputed: int
    place: str


class _Unreachable(Exception):
    """A step before the one asked for cannot be computed."""


class _Stage:
    """Benches and the state before a step, kept from one replay to the next.

    Two training states on the CPU, as it was and changed; one on a GPU, where two may not fit.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.states: dict[str, TrainingState] = {}
        self.state: _State | None = None
        self.leaving = False

    def replay(self, folder: Path) -> bool:
        """Leave outcome.json in `folder`; return whether the step could be reached."""
        request = read_json(folder / "request.json") or {}
        job = open_job(self.run, request["attempt"], folder, request)
        # a process has one device, for all its steps
        settings = {"device": request["settings"].get("device", settings_of_process(job.timeline).device)}
        settings |= {"deterministic": True} if request.get("deterministic") else {}
        job.timeline.append(Entry(1, settings, "a trial"))
        facts: Json = {}
        outcome = self._outcome(lambda: self._replayed(job, request, facts))
        write_json(folder / "outcome.json", facts | outcome | ({"leaving": True} if self.leaving else {}))
        return bool(facts)

    def _replayed(self, job: Job, request: Json, facts: Json) -> Json:
        """Do the trial and return its outcome. When computing begins, `facts` are filled in and running.json is written."""
        step: int = request["step"]
        places = [Path(place) for place in request["memory_places"]]
        memory = next((memory for place in places if (memory := MemoryFile.open(place))), None)
        announcer = Announcer(job, memory, publish=False)
        state = self._reach(job, step, places, announcer)
        if request["settings"]:
            job.timeline.append(Entry(step, request["settings"], "trial"))
        training = self._training(job, step, "changed" if request["settings"] else "as it was")
        training.restore(state.snapshot)
        until = request.get("until") or step
        samples = request["samples"] or [number for one in range(step, until + 1) for number in training.samples(one)]
        facts |= {"recomputed": state.recomputed, "state": state.place, "samples": samples} | _facts(training, samples)
        write_json(job.folder / "running.json", facts, durable=False)
        began = time.perf_counter()
        if request.get("until"):
            stored = find_state(self.run, places, limit=until - 1).snapshot if request.get("compare") else None
            outcome = _course(training, range(step, until + 1), announcer, stored)
        else:
            outcome = _of_one_step(training, step, samples, announcer.of_step(step), request.get("trace", False))
        return outcome | {"seconds": round(time.perf_counter() - began, 4)}

    def _reach(self, job: Job, step: int, places: list[Path], announcer: Announcer) -> _State:
        """Restore the state before `step`; steps from the newest state found up to it are computed as the run did."""
        if self.state and self.state.step == step and self.state.timeline == job.timeline:
            return self.state
        found = find_state(self.run, places, limit=step - 1)
        at = found.snapshot.step if found.snapshot else 0
        snapshot = found.snapshot if at == step - 1 else None
        if snapshot is None:
            training = self._training(job, at + 1, "as it was", fresh=found.snapshot is None)
            if found.snapshot:
                training.restore(found.snapshot)
            for number in range(at + 1, step):
                write_json(job.folder / "reached.json", {"step": number}, durable=False)  # a sign of life
                _advance(training, number, announcer.of_step(number))
            snapshot = Snapshot(step - 1, 0, {}, training.artifact.to_bytes(), training.state.to_bytes())
        self.state = _State(step, list(job.timeline), snapshot, step - 1 - at, found.place)
        return self.state

    def _training(self, job: Job, step: int, slot: str, fresh: bool = False) -> TrainingState:
        """Return a training state for the settings of `step`, built anew where they differ: attention and dtype are fixed at loading."""
        settings = job.settings(step)
        kept = self.states.get(slot)
        if kept is not None and kept.settings.of_model() == settings.of_model() and not fresh:
            prepare_torch(settings)  # the training state that was used last may have had other threads
            training = replace(kept, job=job, settings=settings)
        else:
            del kept
            self._make_room(slot)
            training = build(job, settings)
        self.states[slot] = training
        return training

    def _make_room(self, slot: str) -> None:
        """Let training states go before there is another one."""
        if torch.cuda.is_available():
            self.states.clear()
        self.states.pop(slot, None)
        release()

    def _outcome(self, compute: Callable[[], Json]) -> Json:
        """Return what `compute` gives, or how it failed."""
        try:
            return compute()
        except _Unreachable as unreachable:
            return _failed(str(unreachable))
        except (OutOfMemory, Refusal, *_OF_PYTHON) as error:
            if is_out_of_memory(error):
                words = str(error).splitlines() or [type(error).__name__]
                return _failed(f"out of memory: {words[0][:500]}")
            self.leaving = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            return _failed(error_message(error))


def _facts(training: TrainingState, samples: list[int]) -> Json:
    data = training.task.data
    return {"sources": [data.source(number) for number in samples], "lengths": data.sizes[samples].tolist()}


def _failed(ending: str) -> Json:
    return {"ending": ending, "finite": None, "loss": None, "grad_norm": None}


def _advance(training: TrainingState, step: int, announce: Announce) -> None:
    """Compute a step between the state found and the step asked for, as the run did. Raises _Unreachable."""
    samples = training.samples(step)
    if not samples:
        return
    if not training.apply(step, training.compute(step, samples, announce)):
        raise _Unreachable(f"not reached: step {step}, before it, is not finite")


def _of_one_step(training: TrainingState, step: int, samples: list[int], announce: Announce, trace: bool) -> Json:
    """Compute a step; with `trace` report where values stop being finite."""
    with traced(training.task.model) if trace else _untraced() as seen:
        outcome = _computed(training, step, samples, announce)
    if not trace:
        return outcome | {"first_nonfinite": None}
    absurd, _ = broken_weights(training.task.model, ABSURD, frozen_alone=True)
    return outcome | {"first_nonfinite": seen[0] if seen else None, "absurd_weights": absurd}


def _computed(training: TrainingState, step: int, samples: list[int], announce: Announce) -> Json:
    computed = training.compute(step, samples, announce)
    hashed = gradients_sha256(training.optimizer)
    moved = training.apply(step, computed)
    weights = hashlib.sha256(training.artifact.to_bytes()).hexdigest() if moved else None
    damaged = damage(training, step)
    return {
        "ending": "finished",
        "finite": computed.finite and damaged is None,
        "damaged": damaged,
        "loss": computed.loss,
        "grad_norm": computed.grad_norm,
        "gradients_sha256": hashed,
        "weights_sha256": weights,
        "tokens": computed.tokens,
        "labels": computed.labels,
        "deterministic": training.job.settings(step).deterministic,
    }


def _course(training: TrainingState, steps: range, announcer: Announcer, stored: Snapshot | None) -> Json:
    """Train through these steps: losses and gradient norms up to the first that is not finite; where the state differs from `stored`."""
    losses: list[float | None] = []
    norms: list[float | None] = []
    finite, differs = True, None
    for step in steps:
        samples = training.samples(step)
        if not samples:
            continue
        computed = training.compute(step, samples, announcer.of_step(step))
        finite = training.apply(step, computed)
        losses.append(computed.loss if finite else None)
        norms.append(computed.grad_norm if finite else None)
        if not finite:
            break
        if stored is not None and step == stored.step:
            differs = difference(training, stored)
    damaged = damage(training, steps[-1])
    facts = {"ending": "finished", "finite": finite and damaged is None, "damaged": damaged, "differs": differs}
    facts |= {"losses": losses, "grad_norms": norms}
    return facts | {"loss": losses[-1] if losses else None, "grad_norm": norms[-1] if norms else None}


@contextmanager
def _untraced() -> Iterator[list[Json]]:
    yield []
