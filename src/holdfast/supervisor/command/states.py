"""The states a command can go on from: its checkpoints, and what its callback kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.core.cards.launcher import LauncherCard
from holdfast.core.run.command import Command
from holdfast.core.run.folder import RunFolder
from holdfast.ui.words import short
from holdfast.world.checkpoints.newest import candidates, newest_whole
from holdfast.world.process import Attempt


@dataclass(frozen=True)
class State:
    """A checkpoint as the command is to be told of it; step: None where its name tells none."""

    name: str
    step: int | None


class States:
    """What there is of one command's run."""

    def __init__(self, run: RunFolder, command: Command, card: LauncherCard | None, tell: Callable[[str], None]) -> None:
        self.run, self.command, self.tell = run, command, tell
        self.whole = card.whole if card is not None else "files"
        self._best = 0

    def reached(self, step: int) -> None:
        """A step was seen."""
        self._best = max(self._best, step)

    def stands_at(self) -> int:
        """How far the run has come for good: its newest checkpoint, or the furthest step seen where none is known of."""
        place = self.command.place
        if place is None or not place.is_dir():
            return self._best
        own = [step for step, entry in candidates(place, self.whole) if step is not None and entry.name not in self.command.there]
        return max(own, default=0 if self.whole == "trainer" else self._best)

    def to_go_on_from(self) -> State | None:
        """The newest whole checkpoint. Those that are not whole are set aside, with an event."""
        place, named = self.command.place, self.command.checkpoints
        if place is None or named is None:
            return None
        found = newest_whole(place, self.whole, self.command.there)
        for path, why in found.aside:
            moved = path.name.startswith("set-aside-")
            self.run.event("checkpoint_set_aside", now=str(path), reason=why)
            self.tell(f"{short(path)} is not whole: {why}" + ("; renamed, the one before it is used" if moved else "; it is not used"))
        return State(f"{named.rstrip('/')}/{found.path.name}", found.step) if found.path is not None else None

    def keep(self, attempt: Attempt) -> None:
        """Make a checkpoint of what the callback of an ended attempt kept in memory, where it did."""
