"""The run that a process was started for, told from another one that was begun under its name since."""

from __future__ import annotations

import contextlib

from holdfast.run.folder import RunFolder


class OwnRun:
    """Which run a folder held when the process began."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._file, self._id = self._facts(), self._name()

    def replaced(self) -> bool:
        """Return whether the folder is another run's now. One that was moved, copied, or is gone for a moment is still the run's own."""
        facts = self._facts()
        if facts is None or facts == self._file or (name := self._name()) is None:
            return False
        if self._id is not None and name != self._id:
            return True
        self._file, self._id = facts, name
        return False

    def _facts(self) -> tuple[int, int, int] | None:
        """Return what tells the file of the run's name from another one: an inode alone is used again once its file is removed."""
        with contextlib.suppress(OSError):
            facts = (self._run.path / "run.json").stat()
            return facts.st_dev, facts.st_ino, facts.st_mtime_ns
        return None

    def _name(self) -> str | None:
        with contextlib.suppress(OSError, ValueError):
            return self._run.id()
        return None
