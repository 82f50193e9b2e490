"""The run folder as the supervising loop holds it: what its full disk does not take waits in memory, and what ends the watch is told."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import BLOCKED, GAVE_UP, Stop
from holdfast.base.files import DamagedLine, Json, append_line, is_full
from holdfast.run.folder import RunFolder


@dataclass(frozen=True)
class BufferedRunFolder(RunFolder):
    """A run folder whose journals' lines wait in memory, in their order, while its disk takes none. tell: who hears of that."""

    tell: Callable[[str], None] = field(compare=False)
    waiting: deque[tuple[Path, Json]] = field(default_factory=deque, compare=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    def append(self, file: Path, row: Json) -> None:
        """Append one line to a journal, or keep it until there is room."""
        with self._lock:
            if not self.flush():
                self.waiting.append((file, row))
                return
            try:
                super().append(file, row)
            except OSError as error:
                if not is_full(error):
                    raise
                self.waiting.append((file, row))
                self.event("journals_kept")
                self.tell(
                    f"the disk of {self.path} is full: what is written down of the run is kept in memory until there is room;"
                    " supervision goes on"
                )

    def flush(self) -> bool:
        """Write what waits, as far as the disk takes it; whether nothing waits any more."""
        with self._lock:
            waited = len(self.waiting)
            while self.waiting and _written(*self.waiting[0]):
                self.waiting.popleft()
            if waited and not self.waiting:
                self.event("journals_written", lines=waited)
                self.tell(f"the disk of {self.path} has room again: {waited} lines that were kept in memory are written down")
            return not self.waiting

    def close(self) -> None:
        """Write what waits. Raises OSError where the disk still takes none."""
        if not self.flush():
            raise OSError(errno.ENOSPC, "the disk takes no more", str(self.waiting[0][0]))

    def rows(self, file: Path, damaged_line: DamagedLine | None = None) -> Iterator[Json]:
        yield from super().rows(file, damaged_line)
        yield from [row for journal, row in list(self.waiting) if journal == file]


def _written(file: Path, row: Json) -> bool:
    """Append a line; False where the disk is full."""
    try:
        append_line(file, row)
    except OSError as error:
        if not is_full(error):
            raise
        return False
    return True


@contextlib.contextmanager
def supervised(
    run: RunFolder, tell: Callable[[str], None], removed: Stop, full: Callable[[str], tuple[str, Json | None]]
) -> Iterator[BufferedRunFolder]:
    """The run folder to supervise with. Raises Stop where what is known at the end cannot be written down.

    removed: what to raise where the folder is gone. full: what to say, and the summary, given the file or folder whose disk is full.
    """
    folder = BufferedRunFolder(run.path, tell)
    described = run.command_file if run.command_file.exists() else run.config_file
    try:
        try:
            yield folder
        except Stop:
            folder.flush()
            raise
        folder.close()
    except FileNotFoundError:
        if described.exists():
            raise
        raise removed from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Stop(BLOCKED, f"{error.filename} is a link; holdfast writes through none", "remove the link") from None
        if not is_full(error):
            raise
        place = Path(error.filename or run.path)
        text, summary = full(str(run.path if place.is_relative_to(run.path) else place))
        raise Stop(GAVE_UP, text, "make room, then rerun the same command to resume: nothing is lost", summary) from None
