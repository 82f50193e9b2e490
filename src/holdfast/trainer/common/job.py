"""What an attempt knows before torch is there: its run, its orders, its faults. Registers the process; imports no torch."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.errors import DeviceGone
from holdfast.base.files import Json, write_json
from holdfast.base.identity import myself
from holdfast.config.config import Config
from holdfast.config.faults import Fault, Moment, fires
from holdfast.config.load import load_faults
from holdfast.config.settings import Settings
from holdfast.processes.rank_environment import rank_of
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import exit_code
from holdfast.run.own_run import OwnRun
from holdfast.run.plan import RunPlan
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_at


class StopFlag:
    """Set by SIGTERM: finish the step, save, end."""

    def __init__(self) -> None:
        self.heard = False
        self.known: Callable[[], bool] = lambda: self.heard  # in a group: what all ranks know

    @property
    def asked(self) -> bool:
        """Whether this run is to stop. All ranks of a group say the same at the same point."""
        return self.known()

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _ask(self, *_: object) -> None:
        self.heard = True


@dataclass
class Job:
    """One process that trains or replays: where it belongs and what it was told."""

    run: RunFolder
    number: int
    folder: Path
    config: Config
    plan: RunPlan
    timeline: list[Entry]
    faults: list[Fault]
    orders: Json = field(default_factory=dict)
    stopping: StopFlag = field(default_factory=StopFlag)
    coming: list[tuple[int, Fault]] = field(default_factory=list)  # late faults, and in how many micro-batches each comes
    rank: int = 0

    def __post_init__(self) -> None:
        self._own = OwnRun(self.run)

    @property
    def trial(self) -> bool:
        """Whether it is a trial or an experiment, and no attempt of the run."""
        return self.run.trials in self.folder.parents

    def leave_another_run(self) -> None:
        """End this process where its run's folder was removed and another run begun under its name: nothing of this one goes in there."""
        if self._own.replaced():
            self.say(f"holdfast: another run has begun in {self.run.path}, which was removed: this trainer of the run before ends")
            os._exit(exit_code("elsewhere"))

    def settings(self, step: int) -> Settings:
        return settings_at(self.timeline, step)

    def say(self, text: str) -> None:
        """Print one line to the log. A full disk does not raise: it must not end a run because of a line of log."""
        with contextlib.suppress(OSError):
            print(f"rank {self.rank}: {text}" if self.rank else text, flush=True)

    def event(self, kind: str, **facts: Any) -> None:
        """Journal an event; when the disk takes no more, the log gets it instead. One rank speaks for all."""
        if self.rank:
            return
        try:
            self.run.event(kind, attempt=self.number, **facts)
        except OSError as error:
            self.say(f"event {kind} {facts} not journalled: {error.strerror}")

    def amend(self, entry: Entry, alone: bool = False) -> None:
        """Change settings: by the first rank on disk before anybody uses them. The others only know, and cannot commit without it.

        alone: the others do not hear of it, so whichever rank it is writes it down.
        """
        self.timeline.append(entry if self.rank and not alone else add_entry(self.run.timeline_file, entry))

    def at(self, moment: Moment) -> float:
        """Let the faults that fire at `moment` happen; return what the micro-batch's loss, or its gradients, are to be multiplied by."""
        factor = 1.0
        for fault in self.faults:
            if not fires(fault, moment):
                continue
            if fault.late:
                self.coming.append((fault.late, fault))
                continue
            self.say(fault.message or f"fault: {fault.name}")
            factor *= happen(fault)
        return factor

    def surface(self, all_of_them: bool) -> None:
        """Count down the late faults at the begin of a micro-batch, and let those that are due happen.

        all_of_them: all are due, because no micro-batch is left in the step.
        """
        waiting = [(0 if all_of_them else left - 1, fault) for left, fault in self.coming]
        self.coming = [(left, fault) for left, fault in waiting if left > 0]
        for left, fault in waiting:
            if left <= 0:
                self.say(fault.message or f"fault: {fault.name}")
                happen(fault)

    def point(self, phase: str, step: int | None = None) -> None:
        """Pass a named point of the run outside a micro-batch."""
        if self.faults:
            settings = self.settings(step or 1)
            self.at(Moment(phase, self.number, self.rank, step, seed=self.config.train.seed, settings=settings))


def happen(fault: Fault) -> float:
    """Do to this process what a fault says; return the factor it leaves for the loss or the gradients, 1.0 for none."""
    message = fault.message or f"fault: {fault.name}"
    if fault.effect in ("kill", "host_oom"):  # the kernel sends the same when memory has run out
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault.effect == "exit":
        os._exit(0)
    elif fault.effect == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fault.effect == "abort":
        os.abort()
    elif fault.effect == "raise":
        raise RuntimeError(message)
    elif fault.effect == "device_gone":
        raise DeviceGone(message)
    elif fault.effect == "oom":
        raise MemoryError(fault.message or f"out of memory ({message})")
    while fault.effect == "hang":
        time.sleep(1)
    if fault.effect == "slow":
        time.sleep(fault.seconds)
    return {"nan_loss": math.nan, "nan_grad": math.nan, "zero_loss": 0.0, "spike": fault.factor}.get(fault.effect, 1.0)


def register(path: Path, number: int) -> Job:
    """Write down who trains, before anything slow happens, then read the orders."""
    run = RunFolder(path)
    folder = run.attempt(number)
    stopping = StopFlag()
    stopping.listen()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    written = read_launch_spec(folder)
    orders = written.facts if written else {}
    rank = rank_of(os.environ) if orders.get("ranks", 1) > 1 else 0
    write_json(folder / f"rank{rank}.json", {"identity": myself(), "rank": rank, "argv": sys.argv}, durable=False)
    job = open_job(run, number, folder, orders)
    job.rank = rank
    job.stopping = stopping
    job.point("start")
    return job


def open_job(run: RunFolder, number: int, folder: Path, orders: Json) -> Job:
    faults = load_faults(Path(orders["faults"])) if orders.get("faults") else []
    return Job(run, number, folder, run.config(), run.plan(), read_timeline(run.timeline_file), faults, orders)
