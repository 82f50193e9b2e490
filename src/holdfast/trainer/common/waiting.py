"""What this process waits for others in, told in its pulse, so that the one that hangs is known. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.base.files import Json
from holdfast.run.snapshots.memory_file import MemoryFile


class WaitMark:
    """memory: where this rank's pulse is, once it has one."""

    def __init__(self) -> None:
        self.memory: MemoryFile | None = None
        self._pulse: Json | None = None

    def begin(self, what: str | bool) -> None:
        """Mark this process in its pulse as waiting for other ranks. what: the exchange it waits in; True: one of small facts."""
        self._pulse = self.memory.pulse() if self.memory else None
        if self.memory and self._pulse:
            self.memory.beat(self._pulse | {"waits": what})

    def end(self) -> None:
        if self.memory and self._pulse:
            self.memory.beat(self._pulse)

    @contextmanager
    def during(self, what: str | bool) -> Iterator[None]:
        """Mark this process as waiting for other ranks within the context. After an error, such as a lost peer, the mark stays."""
        self.begin(what)
        yield
        self.end()


WAITING = WaitMark()  # one a process, as the group of torch.distributed is
