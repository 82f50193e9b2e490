"""The state an attempt goes on from: found, put into every rank and looked at; and who keeps snapshots from there. Trains nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.trainer.common.job import Job
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.state.following import SnapshotFollower
from holdfast.trainer.state.parts import Parts
from holdfast.trainer.state.restore import RestorePoint, state_for_training
from holdfast.trainer.state.shared import share_state
from holdfast.trainer.state.snapshot import Snapshots
from holdfast.trainer.state.sound import sound_before
from holdfast.trainer.state.together import for_all, own_part, prove, sound_for_all, told_of
from holdfast.trainer.step.training_state import TrainingState


class NoState(Exception):
    """Steps were committed, and nothing that verifies is left of them. The message: what was passed over."""


class DamagedState(Exception):
    """The newest state, `found`, is none that training makes. sound: the step of the newest that is; told: what is wrong with others."""

    def __init__(self, found: RestorePoint, sound: int, told: list[str]) -> None:
        super().__init__(*told)
        self.found, self.sound, self.told = found, sound, told


def state_of(job: Job, rank: Rank, places: list[Path]) -> RestorePoint:
    """Find the state to go on from. The first rank looks for it; the others hear its step, and read their part of one in memory.

    Raises NoState.
    """
    limit = None
    while True:
        found = RestorePoint(None, "", [])
        if rank.first:
            found = state_for_training(job.run, places, rank.size if job.config.cuts_trained else 1, limit)
            committed = job.run.committed()
            if found.snapshot is None and committed:
                raise NoState(_no_state(committed, found))
        told = rank.exchange(told_of(found))[0]
        if not rank.first and told["step"] is not None:
            found = RestorePoint(Snapshot(told["step"], 0, {}, b"", b""), "the first rank's state", [])
        if not (job.config.cuts_trained and told["ranks"] == rank.size > 1):
            return found
        own = found if rank.first else replace(found, snapshot=own_part(places, rank, told))
        if all(one["there"] for one in rank.exchange({"there": own.snapshot is not None})):
            return own
        limit = told["step"] - 1  # a part of it is damaged, or gone


def restored(training: TrainingState, places: list[Path], found: RestorePoint) -> tuple[Snapshots | SnapshotFollower, RestorePoint]:
    """Restore the newest sound state on all ranks; return this rank's keeper of snapshots and that state. Raises DamagedState."""
    job, rank, newest = training.job, training.rank, found
    if job.config.cuts_trained:
        found = for_all(training, places, found)
    if job.config.cuts_trained and rank.size > 1:
        found, damaged = sound_for_all(training, places, found)
        step = found.snapshot.step if found.snapshot else 0
        if damaged:
            raise DamagedState(newest, step, damaged)
        prove(training, found.snapshot)
        return Parts(training, places, step), found.spent()
    snapshots = Snapshots(training, places) if rank.first else SnapshotFollower(job, places)
    if rank.first:
        sound, damaged = sound_before(training, places, found)
        if damaged:
            raise DamagedState(newest, sound, damaged)
    share_state(training)
    return snapshots, found.spent()


def _no_state(committed: int, found: RestorePoint) -> str:
    broken = "; ".join(f"{entry['checkpoint']}: {entry['reason']}" for entry in found.passed_over) or "there is no checkpoint"
    return f"{committed} steps were committed, but no state of them can be read ({broken})"
