"""The trials of one failing step: counted, and remembered by what they ask. Starts nothing; concludes nothing from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any

from holdfast.base.files import Json, read_lines
from holdfast.config.settings import Settings
from holdfast.diagnosis.divergence import FROM_THE_START, WIDTH
from holdfast.experiments.hosts import Hosts
from holdfast.experiments.replay import DEVICE_GONE, TrialChange, TrialsSpent, failure
from holdfast.processes.ending import Stuck
from holdfast.run.attempt import closed_attempts
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_steps, next_valid
from holdfast.run.types import Verdict

MOST_SECONDS = 3600.0
_STATES = 3  # older states that are tried
_ELSEWHERE = 3  # samples of other steps


class NoAnswer(Exception):
    """A trial of what the run itself does could not be begun, so it says nothing about the step. The message: why."""


class Lab:
    """The trials of one failing step: counted, and remembered by what they ask."""

    def __init__(
        self,
        run: RunFolder,
        step: int,
        settings: Settings,
        replay: Callable[[TrialChange], Json],
        most_trials: int,
        stop: Callable[[], bool] = lambda: False,
        goes_back: bool = True,
    ) -> None:
        """Take `replay`, which tries the step under a change; goes_back: whether committed steps may be trained again at a lower rate."""
        self.run, self.step, self.settings, self.replay, self.stop = run, step, settings, replay, stop
        self.trials, self.most_trials, self.goes_back = 0, most_trials, goes_back
        self.processes = 0  # that were started for the trials
        self.unchanged: list[bool] = []  # whether the step failed, each time it was tried as it was
        self.ways: list[str] = []  # in which the step failed where nothing but its samples was changed, each once
        self.began = time.monotonic()
        self.known: dict[str, Json] = {}

    @property
    def exact(self) -> bool:
        """Whether the same trial gives the same bits: not so with most GPU runs' kernels, which trials use as well."""
        return self.settings.deterministic

    def fails(self, change: TrialChange, anew: bool = False) -> bool:
        """Return whether the step fails under `change`; asked once, or again with `anew`.

        Raises TrialsSpent, NoAnswer, Stuck.
        """
        return not self.outcome(change, anew)["finite"]

    def fails_unchanged(self, suspects: Sequence[int]) -> None:
        """Try the step as it was, once more."""
        self.unchanged.append(self.fails(TrialChange(tuple(suspects)), anew=True))

    def odds(self) -> tuple[int, int] | None:
        """Return (failures, trials) of the unchanged step; None where it was not tried."""
        return (sum(self.unchanged), len(self.unchanged)) if self.unchanged else None

    def outcome(self, change: TrialChange, anew: bool = False) -> Json:
        key = change.key()
        if anew or key not in self.known:
            self.known[key] = self._tried(change)
        return self.known[key]

    def older_states(self, at: int) -> list[int]:
        """List the steps before `at` whose state is on disk and whole, newest first; last the beginning, where it is near."""
        found: list[int] = []
        steps = [step for step in checkpoint_steps(self.run) if step < at]
        while steps and len(found) < _STATES:
            checkpoint, _ = next_valid(self.run, steps)
            if checkpoint is None:
                break
            found.append(checkpoint.step)
            steps = [step for step in steps if step < checkpoint.step]
        return [*found, *([0] if 0 < at <= FROM_THE_START else [])]

    def elsewhere(self, samples: Sequence[int]) -> list[int]:
        """List a few samples of other steps, for a step that has no others: of the newest committed ones, else any of the run's rows."""
        rows = reversed(self.run.newest_steps())
        learned = (one for row in rows if row["step"] < self.step and row.get("loss") is not None for one in row.get("samples") or ())
        known = self.run.plan().rows if self.run.plan_file.exists() else None
        others = chain(learned, range(known.train + known.held_out) if known else ())
        gone = {*samples, *self.settings.quarantine}
        return list(dict.fromkeys(islice((one for one in others if one not in gone), _ELSEWHERE)))

    def losses(self) -> list[tuple[int, float]]:
        """Return (step, loss) of the steps committed before this one."""
        return [(row["step"], row["loss"]) for row in self.run.steps() if row["step"] < self.step and row["loss"] is not None]

    def accused(self) -> int:
        """Count the steps, among the last before this one, whose rows were put in quarantine."""
        return len({row["step"] for row in read_lines(self.run.quarantine_file) if self.step - WIDTH < row["step"] < self.step})

    def verdict(self, kind: str, evidence: str, **facts: Any) -> Verdict:
        """Return a verdict of this kind with the trials so far."""
        facts |= {"odds": self.odds(), "processes": self.processes}
        return Verdict(kind, self.trials, round(self.seconds(), 1), evidence, **facts)

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def _tried(self, change: TrialChange) -> Json:
        if self.trials >= self.most_trials or self.seconds() > MOST_SECONDS or self.stop():
            raise TrialsSpent
        self.trials += 1
        result = self.replay(change)
        self.processes = result.get("process", 0)
        self.began += result.get("waited_s", 0.0)  # for room on the disk: no part of the budget
        if result["ending"] == DEVICE_GONE or not (result["begun"] or change.settings or change.env):
            raise NoAnswer(f"a trial could not be begun: {failure(result)}")
        if not (result["finite"] or change.settings or change.env or change.since or (way := failure(result)) in self.ways):
            self.ways.append(way)
        return result

    def sources(self, samples: Sequence[int]) -> tuple[str, ...]:
        """Return the rows, as file:line, of samples that took part in a trial."""
        return tuple(str(self.fact(one, "sources")) for one in samples)

    def fact(self, sample: int, name: str) -> Any:
        """Return a fact about a sample from any trial it took part in; None where there is none."""
        outcomes = (outcome for outcome in self.known.values() if name in outcome and sample in outcome["samples"])
        return next((outcome[name][outcome["samples"].index(sample)] for outcome in outcomes), None)


def concluded(lab: Lab, hosts: Hosts, experiments: Callable[[], Verdict]) -> Verdict:
    """Run the experiments and end the lab's processes; return a verdict of `stuck` where one of them cannot be ended."""
    try:
        with hosts:
            return experiments()
    except Stuck as stuck:
        return lab.verdict("stuck", str(stuck))


def trials_left(run: RunFolder, step: int) -> int:
    """Return the trials left for a step, which all its investigations share since the run was last given up or stopped."""
    spent = 0
    for _, end in closed_attempts(run):
        if not end.goes_on:
            spent = 0
        elif end.step == step:
            spent += end.trials
    return max(0, run.config().run.trials - spent)
