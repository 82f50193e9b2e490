"""What this process waits for others in, told in its pulse, so that the one that hangs is known. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.files import Json
from holdfast.run.snapshots.memory_file import MemoryFile


class Waiting:
    """memory: where this rank's pulse is, once it has one."""

    def __init__(self) -> None:
        self.memory: MemoryFile | None = None
        self._pulse: Json | None = None

    def begin(self, what: str | bool) -> None:
        """From here on this process waits for others. what: in which exchange between them; True: of small facts."""
        self._pulse = self.memory.pulse() if self.memory else None
        if self.memory and self._pulse:
            self.memory.beat(self._pulse | {"waits": what})

    def end(self) -> None:
        if self.memory and self._pulse:
            self.memory.beat(self._pulse)

    @contextmanager
    def during(self, what: str | bool) -> Iterator[None]:
        """Inside, the pulse says so; where it ends with an error, as of a peer that is lost, it stays."""
        self.begin(what)
        yield
        self.end()


WAITING = Waiting()  # one a process, as the group of torch.distributed is
