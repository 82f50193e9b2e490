"""What a rank beside the first does where that one saves: nothing, but it publishes its own pulse. Reads no state from disk."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.files import Json
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import of_rank
from holdfast.trainer.common.job import Job


class SnapshotFollower:
    """In place of `Snapshots`: the weights are the same on every rank, and the first rank's snapshot is of all of them."""

    def __init__(self, job: Job, places: list[Path]) -> None:
        self.memory = _pulse_file(job, places)

    def commit(self, step: int, row: Json, durable: bool, needed: bool = False) -> None:
        """Do nothing: the first rank commits."""

    def agreed(self, durable: bool) -> bool:
        return durable

    def wait_until_copied(self) -> None:
        """Do nothing: this rank copies no snapshot."""

    def settle(self) -> None:
        """Do nothing: this rank has no snapshot on its way."""

    def secure(self, step: int) -> None:
        """Do nothing: the first rank makes the state durable."""

    def writer_is_free(self, step: int, wait: bool) -> bool:
        return False

    def end(self) -> None:
        """Do nothing: no row was held back."""

    def pin_newest(self) -> None:
        """Do nothing: the first rank pins."""


def _pulse_file(job: Job, places: list[Path]) -> MemoryFile:
    """Create a memory file without room for tensors, beside that of the first rank, in the first place that takes it."""
    for place in places[:-1]:
        try:
            return MemoryFile.create(of_rank(place, job.rank), job.run.path, 0, 0)
        except OSError:
            continue
    return MemoryFile.create(of_rank(places[-1], job.rank), job.run.path, 0, 0)
