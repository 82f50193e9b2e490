"""The one error a user meets, and the exit codes. Printing it is cli.py's job. And the one a trainer says to its parents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DONE = 0
BLOCKED = 1
USAGE = 2
GAVE_UP = 3
OUR_BUG = 70
INTERRUPTED = 130


class Stop(Exception):
    """End the command with `code`; `message` states the fact and its numbers, `hint` the next command or edit.

    `answer` is what --json prints all the same (the summary of a run that was given up, say).
    """

    def __init__(self, code: int, message: str, hint: str = "", answer: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.answer = code, message, hint, answer

    def __reduce__(self) -> tuple[Any, ...]:  # so that it comes whole out of another process
        return type(self), (self.code, self.message, self.hint, self.answer)

    def __str__(self) -> str:
        return self.message if not self.hint else f"{self.message}\n  -> {self.hint}"


class DeviceGone(Exception):
    """The GPU of the run's plan is not there. The message: what torch says instead."""


def told(error: Exception) -> str:
    """Kind and first line of an error that another package raised."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


class Damaged(Stop, ValueError):
    """A file of a run that does not hold what it should. A ValueError as well, for those who go on without the file."""


def damaged(path: Path, why: str) -> Damaged:
    """The error that says so."""
    return Damaged(BLOCKED, f"{path} is damaged: {why}", "restore that file; holdfast status and diagnose read what is left")
