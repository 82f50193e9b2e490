"""Replay steps of a run in a process of its own, some of their samples or all, as it was or with changed settings. Writes only outcomes."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from holdfast.core.errors import BLOCKED, DONE, told
from holdfast.core.files import Json, read_json, write_json
from holdfast.core.memoryfile import MemoryFile, Snapshot
from holdfast.core.run import RunFolder
from holdfast.core.timeline import Settings
from holdfast.trainer.announce import Announcer
from holdfast.trainer.exhausted import OutOfMemory
from holdfast.trainer.images import ABSURD
from holdfast.trainer.job import Job, open_job
from holdfast.trainer.refuse import broken_weights
from holdfast.trainer.restore import find_state
from holdfast.trainer.setup import Bench, build
from holdfast.trainer.sound import damage, difference
from holdfast.trainer.step import Announce, compute_gradients, gradients_sha256, update
from holdfast.trainer.trace import traced

_OF_A_STEP = ("micro_batch_tokens", "quarantine", "steps", "samples", "behind", "patience_from", "lr_factor")
_RECOVERABLE = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError)


def trial(path: Path, folder: Path) -> int:
    """Do what `folder`/request.json asks for and leave `folder`/outcome.json."""
    return DONE if _Stage(RunFolder(path)).replay(folder) else BLOCKED


def host_trials(path: Path) -> int:
    """Replay for each folder named on a line of standard input, until that ends; the model is loaded once."""
    stage = _Stage(RunFolder(path))
    for line in sys.stdin:
        stage.replay(Path(line.strip()))
        if torch.cuda.is_available() and stage.broken:
            return BLOCKED  # after an error a device's context cannot be trusted
    return DONE


@dataclass
class _State:
    """The state before a step, and how it was come by."""

    step: int
    timeline: list[dict[str, Any]]
    snapshot: Snapshot
    recomputed: int
    place: str


class _Stage:
    """Benches and the state before a step, kept from one replay to the next."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.benches: dict[str, Bench] = {}
        self.state: _State | None = None
        self.broken = False

    def replay(self, folder: Path) -> bool:
        """Leave outcome.json in `folder`; whether the step could be reached."""
        request = read_json(folder / "request.json") or {}
        job = open_job(self.run, request["attempt"], folder, request)
        job.timeline.append({"from_step": 1, "settings": {"deterministic": True}, "reason": "a trial"})
        step: int = request["step"]
        places = [Path(place) for place in request["memory_places"]]
        memory = next((memory for place in places if (memory := MemoryFile.open(place))), None)
        announcer = Announcer(job, memory, publish=False)
        state = self._reach(job, step, places, announcer)
        if state is None:
            write_json(folder / "outcome.json", {"ending": "unreachable", "reason": f"a step before {step} is not finite"})
            return False
        if request["settings"]:
            job.timeline.append({"from_step": step, "settings": request["settings"], "reason": "trial"})
        bench = self._bench(job, step, "changed" if request["settings"] else "as it was")
        bench.restore(state.snapshot)
        until = request.get("until") or step
        samples = request["samples"] or [number for one in range(step, until + 1) for number in bench.samples(one)]
        facts = {"recomputed": state.recomputed, "state": state.place, "samples": samples, **_facts(bench, samples)}
        write_json(folder / "running.json", facts, durable=False)
        if request.get("until"):
            stored = find_state(self.run, places, limit=until - 1).snapshot if request.get("compare") else None
            outcome = self._computed(lambda: _course(bench, range(step, until + 1), announcer, stored))
        else:
            outcome = self._compute(bench, step, samples, announcer.of_step(step), request.get("trace", False))
        write_json(folder / "outcome.json", facts | outcome)
        return True

    def _reach(self, job: Job, step: int, places: list[Path], announcer: Announcer) -> _State | None:
        """The state before `step`; steps between the newest state found and that are computed as the run did."""
        if self.state and self.state.step == step and self.state.timeline == job.timeline:
            return self.state
        found = find_state(self.run, places, limit=step - 1)
        at = found.snapshot.step if found.snapshot else 0
        bench = self._bench(job, at + 1, "as it was", fresh=found.snapshot is None)
        if found.snapshot:
            bench.restore(found.snapshot)
        for number in range(at + 1, step):
            if not _advance(bench, number, announcer.of_step(number)):
                return None
        snapshot = Snapshot(step - 1, 0, {}, bench.artifact.to_bytes(), bench.state.to_bytes())
        self.state = _State(step, list(job.timeline), snapshot, step - 1 - at, found.place)
        return self.state

    def _bench(self, job: Job, step: int, slot: str, fresh: bool = False) -> Bench:
        """A bench for the settings of `step`. Built anew where they differ: attention and dtype are fixed at loading."""
        settings = job.settings(step)
        kept = self.benches.pop(slot, None)
        if kept is not None and _of_building(kept.settings) == _of_building(settings) and not fresh:
            bench = replace(kept, job=job, settings=settings)
        else:
            del kept
            bench = build(job, settings)
        self.benches[slot] = bench
        return bench

    def _compute(self, bench: Bench, step: int, samples: list[int], announce: Announce, trace: bool) -> Json:
        with traced(bench.task.model) if trace else _untraced() as seen:
            outcome = self._computed(lambda: _replayed(bench, step, samples, announce))
        if not trace:
            return outcome | {"first_nonfinite": None}
        absurd, _ = broken_weights(bench.task.model, ABSURD, frozen_alone=True)
        return outcome | {"first_nonfinite": seen[0] if seen else None, "absurd_weights": absurd}

    def _computed(self, compute: Callable[[], Json]) -> Json:
        """What `compute` comes to, or how it failed."""
        began = time.perf_counter()
        try:
            return compute() | {"seconds": round(time.perf_counter() - began, 4)}
        except OutOfMemory as full:
            return _failed(f"out of memory: {full}")
        except _RECOVERABLE as error:
            self.broken = True
            return _failed(told(error))


def _of_building(settings: Settings) -> Settings:
    """The settings a bench is built for; the others are looked at in each step."""
    return {name: value for name, value in settings.items() if name not in _OF_A_STEP}


def _facts(bench: Bench, samples: list[int]) -> Json:
    tokens = bench.task.tokens
    return {"sources": [str(tokens.source(number)) for number in samples], "lengths": [len(tokens.row(number)[0]) for number in samples]}


def _failed(ending: str) -> Json:
    return {"ending": ending, "finite": None, "loss": None, "grad_norm": None}


def _advance(bench: Bench, step: int, announce: Announce) -> bool:
    """Compute a step between the state found and the step asked for, exactly as the run did."""
    samples = bench.samples(step)
    if not samples:
        return True
    computed = compute_gradients(bench.task, bench.optimizer, step, samples, bench.job.settings(step)["micro_batch_tokens"], announce)
    if computed.finite:
        update(bench.optimizer, computed, bench.learning_rate(step), bench.job.config.train.max_grad_norm)
    return computed.finite


def _replayed(bench: Bench, step: int, samples: list[int], announce: Announce) -> Json:
    settings = bench.job.settings(step)
    computed = compute_gradients(bench.task, bench.optimizer, step, samples, settings["micro_batch_tokens"], announce)
    hashed = gradients_sha256(bench.optimizer)
    weights = None
    if computed.finite:
        update(bench.optimizer, computed, bench.learning_rate(step), bench.job.config.train.max_grad_norm)
        weights = hashlib.sha256(bench.artifact.to_bytes()).hexdigest()
    damaged = damage(bench, step)
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
    }


def _course(bench: Bench, steps: range, announcer: Announcer, stored: Snapshot | None) -> Json:
    """Train through these steps: losses and gradient norms up to the first that is not finite; where the state differs from `stored`."""
    losses: list[float | None] = []
    norms: list[float | None] = []
    finite, differs = True, None
    for step in steps:
        samples, settings = bench.samples(step), bench.job.settings(step)
        if not samples:
            continue
        computed = compute_gradients(bench.task, bench.optimizer, step, samples, settings["micro_batch_tokens"], announcer.of_step(step))
        finite = computed.finite
        losses.append(computed.loss if finite else None)
        norms.append(computed.grad_norm if finite else None)
        if not finite:
            break
        update(bench.optimizer, computed, bench.learning_rate(step), bench.job.config.train.max_grad_norm)
        if stored is not None and step == stored.step:
            differs = difference(bench, stored)
    damaged = damage(bench, steps[-1])
    facts = {"ending": "finished", "finite": finite and damaged is None, "damaged": damaged, "differs": differs}
    facts |= {"losses": losses, "grad_norms": norms}
    return facts | {"loss": losses[-1] if losses else None, "grad_norm": norms[-1] if norms else None}


@contextmanager
def _untraced() -> Iterator[list[Json]]:
    yield []
