"""The run folder as the supervising loop holds it: what its disk does not take waits in memory, and what ends the watch is told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.errors import GAVE_UP, Stop
from holdfast.base.file_errors import fact_of, file_error, remedy_of
from holdfast.base.files import DamagedLine, Json, append_line, is_full, takes_nothing
from holdfast.machine import clock
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder

_REMOVAL_S, _LOOK_S = 5.0, 0.1  # that a removal may take from the first missing file to the one which says what the run is


@dataclass(frozen=True)
class BufferedRunFolder(RunFolder):
    """A run folder whose journals' lines wait in memory, in their order, while its disk takes none. tell: who hears of that."""

    tell: Callable[[str], None] = field(compare=False)
    waiting: deque[tuple[Path, Json]] = field(default_factory=deque, compare=False)
    refused: list[OSError] = field(default_factory=list, compare=False)  # the newest reason why the disk takes none
    _lock: threading.RLock = field(default_factory=threading.RLock, compare=False, repr=False)

    def append(self, file: Path, row: Json, durable: bool = False) -> None:
        """Append one line to a journal, or keep it until there is room."""
        with self._lock:
            if not self.flush():
                self.waiting.append((file, row))
                return
            try:
                super().append(file, row, durable)
            except OSError as error:
                if not takes_nothing(error):
                    raise
                self._keep(file, row, error)

    def _keep(self, file: Path, row: Json, error: OSError) -> None:
        self.refused[:] = [error]
        self.waiting.append((file, row))
        self.event("journals_kept")
        until = "until there is room" if is_full(error) else "until it takes them"
        self.tell(f"{_fact(error, self.path)}: what is written down of the run is kept in memory {until}; supervision goes on")

    def flush(self) -> bool:
        """Write what waits, as far as the disk takes it; return whether nothing waits any more."""
        with self._lock:
            waited = len(self.waiting)
            while self.waiting and self._written(*self.waiting[0]):
                self.waiting.popleft()
            if waited and not self.waiting:
                self.event("journals_written", lines=waited)
                again = "has room" if not self.refused or is_full(self.refused[0]) else "can be written"
                self.tell(f"the disk of {self.path} {again} again: {waited} lines that were kept in memory are written down")
            return not self.waiting

    def close(self) -> None:
        """Write what waits. Raises OSError where the disk still takes none."""
        if not self.flush():
            raise self.refused[0]

    def _written(self, file: Path, row: Json) -> bool:
        """Append a line; False where the disk takes none."""
        try:
            append_line(file, row)
        except OSError as error:
            if not takes_nothing(error):
                raise
            self.refused[:] = [error]
            return False
        return True

    def rows(self, file: Path, damaged_line: DamagedLine | None = None) -> Iterator[Json]:
        yield from super().rows(file, damaged_line)
        yield from [row for journal, row in list(self.waiting) if journal == file]


def _gone(file: Path, wait_s: float) -> bool:
    """Tell whether a file that every run folder has is gone, or goes while a removal of all of it may last."""
    until = time.monotonic() + wait_s
    while True:
        try:
            file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_S)


def _fact(error: OSError, place: Path | str) -> str:
    """Return why the disk of a place takes nothing."""
    return f"the disk of {place} is full" if is_full(error) else fact_of(error, place)


def _of_living(run: RunFolder) -> object:
    """Return the clock of the newest attempt where nobody has seen its end: what it writes down goes on by that."""
    newest = [run.attempt(number) for number in run.attempts()[-1:]]
    spec = read_launch_spec(newest[0]) if newest and not (newest[0] / "ending.json").exists() else None
    return spec.facts.get("clock") if spec else None


@contextlib.contextmanager
def supervised(
    run: RunFolder, tell: Callable[[str], None], removed: Stop, full: Callable[[str], tuple[str, Json | None]]
) -> Iterator[BufferedRunFolder]:
    """Yield the run folder to supervise with. Raises Stop where what is known at the end cannot be written down.

    removed: what to raise where the folder is gone, whatever missed it first. full: what to say, and the summary, given why a disk takes
    nothing.
    """
    folder = BufferedRunFolder(run.path, tell)
    described = run.command_file if run.command_file.exists() else run.config_file
    try:
        try:
            with clock.counting(_of_living(run)):
                yield folder
        except Stop:
            folder.flush()
            raise
        folder.close()
    except Exception as error:
        if _gone(described, _REMOVAL_S if isinstance(error, FileNotFoundError | FileExistsError | NotADirectoryError) else 0.0):
            raise removed from error
        if not isinstance(error, OSError):
            raise
        if not takes_nothing(error):
            raise (file_error(error) or error) from None
        place = Path(error.filename or run.path)
        text, summary = full(_fact(error, run.path if place.is_relative_to(run.path) else place))
        remedy = "make room" if is_full(error) else remedy_of(error)
        raise Stop(GAVE_UP, text, f"{remedy}, then rerun the same command to resume: nothing is lost", summary) from None
