"""The hands a supervisor works with: real processes and the lab, behind a protocol that tests pass another of. Decides nothing."""

from __future__ import annotations

import os
import time
from typing import Protocol

from holdfast.base.child import with_env
from holdfast.base.files import Json, read_json
from holdfast.book import cards_of
from holdfast.diagnosis.divergence import Trouble
from holdfast.experiments.course import investigate_course
from holdfast.experiments.hosts import Hosts
from holdfast.experiments.investigate import in_order, investigate
from holdfast.experiments.trials import Lab, concluded, trials_left
from holdfast.processes import process
from holdfast.processes.attempt import Attempt
from holdfast.processes.hang_timeout import TrainerHangTimeout
from holdfast.processes.pauses import Clock
from holdfast.processes.standby import Standby
from holdfast.run.folder import RunFolder
from holdfast.run.remedies import refuted
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.run.types import Diagnosis, Ending, FailureReport, Launch, Verdict
from holdfast.supervision import evidence
from holdfast.supervision.supervise import View

Viewer = View[Attempt]


class World(Protocol):
    """The hands the supervisor works with; tests pass others."""

    clock: Clock

    def adopt(self, run: RunFolder) -> Attempt | None: ...
    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt: ...
    def stand_by(self, launch: Launch) -> None: ...
    def living(self, attempt: Attempt) -> dict[str, int]: ...
    def watch(self, attempt: Attempt, run: RunFolder, tick: process.Tick) -> Ending: ...
    def collect(self, attempt: Attempt, run: RunFolder, ending: Ending) -> FailureReport: ...
    def investigate(
        self, launch: Launch, run: RunFolder, failure_report: FailureReport, diagnosis: Diagnosis, deaths: int, view: Viewer
    ) -> Verdict: ...
    def investigate_course(self, launch: Launch, run: RunFolder, trouble: Trouble, to: int, view: Viewer) -> Verdict: ...


class RealWorld:
    """Real processes."""

    clock: Clock = time
    adopt = staticmethod(process.adopt)
    living = staticmethod(process.living_pids)
    watch = staticmethod(process.watch)
    collect = staticmethod(evidence.collect)

    def __init__(self, standby: Standby) -> None:
        self.standby = standby

    def start(self, launch: Launch, run: RunFolder, orders: Json) -> Attempt:
        return process.start(launch, run, orders, self.standby)

    def stand_by(self, launch: Launch) -> None:
        self.standby.consider(launch)

    def investigate(
        self, launch: Launch, run: RunFolder, failure_report: FailureReport, diagnosis: Diagnosis, deaths: int, view: Viewer
    ) -> Verdict:
        """Try the failure report's step in experiments, on the device its trainer has left."""
        assert failure_report.step is not None
        settings = settings_at(read_timeline(run.timeline_file), failure_report.step)
        limit_s = TrainerHangTimeout(run, failure_report.attempt, run.config().run.hang_s).limit_s()
        applied = list(run.events())
        out = {event["remedy"] for event in applied if event["event"] == "remedy_applied" and event["step"] == failure_report.step}
        machine = read_json(run.machine_file) or {}
        cards, allow_cpu = cards_of("remedies").values(), run.config().run.allow_cpu
        remedies = in_order(cards, diagnosis.cause, machine, out | set(refuted(applied)), allow_cpu)
        suspects = failure_report.samples if failure_report.phase == "rehearsal" else ()
        hosts = Hosts(run, failure_report.step, with_env(os.environ, launch.env), limit_s, view.tell, view.stopping)
        left, goes_back = trials_left(run, failure_report.step), run.config().run.rollback
        lab = Lab(run, failure_report.step, settings, hosts.replay, left, view.stopping, goes_back)
        return concluded(lab, hosts, lambda: investigate(lab, suspects, deaths, remedies))

    def investigate_course(self, launch: Launch, run: RunFolder, trouble: Trouble, to: int, view: Viewer) -> Verdict:
        """Try the steps in which the loss left its level in experiments."""
        settings = settings_at(read_timeline(run.timeline_file), to + 1)
        limit_s = TrainerHangTimeout(run, run.attempts()[-1], run.config().run.hang_s).limit_s()
        steps = {row["step"]: row for row in run.newest_steps() if row["step"] > to}
        hosts = Hosts(run, to + 1, with_env(os.environ, launch.env), limit_s, view.tell, view.stopping)
        lab = Lab(run, to + 1, settings, hosts.replay, trials_left(run, to + 1), view.stopping)
        return concluded(lab, hosts, lambda: investigate_course(lab, trouble, steps))
