"""Snapshots where each rank holds a part of the state: all of them keep theirs of the same steps, the first one decides which.

A state counts when all its parts are there. So that there always is one, no rank writes a newer part before all have sealed the one before.
"""

from __future__ import annotations

import errno
from pathlib import Path

from holdfast.base.files import Json
from holdfast.run.snapshots.memory_file import SLOTS, MemoryFile, SlotHeader
from holdfast.run.snapshots.memory_places import of_rank
from holdfast.run.snapshots.piece_files import facts_of
from holdfast.trainer.state.snapshot import Snapshots
from holdfast.trainer.step.training_state import TrainingState


class Parts(Snapshots):
    """This rank's parts, in a memory file of its own. The first rank's file says which are to become a checkpoint, and journals.

    step: the state the run goes on from. What an attempt that ended left beyond it, or pinned on some ranks alone, is let go.
    """

    def __init__(self, training: TrainingState, places: list[Path], step: int) -> None:
        super().__init__(training, places)
        self.memory.forget_after(step)  # parts that others may not have
        held = [header for index in range(SLOTS) if (header := self.memory.header(index))]
        pinned = [header.step for header in self.memory.pinned_headers()]
        every = training.rank.exchange({"held": [header.step for header in held], "pinned": pinned})
        for header in held:
            if header.step not in every[0]["pinned"] or any(header.step not in one["held"] for one in every):
                self.memory.unpin(header.index)

    def agreed(self, durable: bool) -> bool:
        self.settle()
        return bool(self._of_the_first(durable))

    def writer_is_free(self, step: int, wait: bool) -> bool:
        return self.training.rank.first and super().writer_is_free(step, wait)

    def secure(self, step: int) -> None:
        kept = self._kept(step)
        if self._of_the_first(self.training.rank.first and not self._secured(kept) and self._turn(step)):
            self._pin(kept)

    def pin_newest(self) -> None:
        if self._of_the_first(not self._newest_is_pinned):
            self._pin(self.memory.newest_header())

    def _pin(self, kept: SlotHeader | None) -> None:
        """Pin this rank's part. The first rank's comes last: once it is pinned, the state is made durable and all parts are unpinned."""
        if not self.training.rank.first:
            super()._pin(kept)
        self._of_the_first(None)
        if self.training.rank.first:
            super()._pin(kept)

    def _of_the_first(self, told: object) -> object:
        """Return what the first rank passes as `told`. All ranks come here."""
        return self.training.rank.exchange({"told": told})[0]["told"]

    def _made(self, place: Path, last: bool) -> MemoryFile | OSError:
        rank = self.training.rank
        own = super()._made(of_rank(place, rank.number), last)
        told = rank.exchange({"refused": (own.strerror or str(own)) if isinstance(own, OSError) else None})
        if refused := next((one["refused"] for one in told if one["refused"]), None):
            return own if isinstance(own, OSError) else OSError(errno.ENOSPC, refused)
        return own

    def _tell_ready(self, place: Path) -> None:
        if self.training.rank.first:
            super()._tell_ready(place)

    def _behind(self) -> bool:
        return False  # what depends on a rank's own time is no common decision

    def _interval(self, cost_s: float, step_s: float) -> int:
        told = self.training.rank.exchange({"cost": cost_s, "step": step_s})
        return super()._interval(max(one["cost"] for one in told), told[0]["step"])

    def _meta(self, step: int, row: Json) -> Json:
        return super()._meta(step, row) | facts_of(self.training.rank.size, self.training.job.number)

    def _journal(self, row: Json) -> None:
        if self.training.rank.first:
            super()._journal(row)

    def _save_without_writer(self) -> None:
        if self.training.rank.first:
            super()._save_without_writer()
