"""The one error a user meets, and the exit codes. Printing it is cli.py's job. And the one a trainer says to its parents."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DONE = 0
BLOCKED = 1
USAGE = 2
GAVE_UP = 3
AGAIN = 75  # to another launcher: start the same command again
OUR_BUG = 70
INTERRUPTED = 130
NO_THREADS = "can't start new thread"  # Python's words where a limit of threads or processes is reached (ulimit -u, a container's)


class Stop(Exception):
    """End the command with `code`; `message` states the fact and its numbers, `hint` the next command or edit.

    `answer` is what --json prints all the same (the summary of a run that was given up, say).
    """

    __module__ = "holdfast"  # where Python programs know it from

    def __init__(self, code: int, message: str, hint: str = "", answer: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.answer = code, message, hint, answer

    def __reduce__(self) -> tuple[Any, ...]:  # so that it comes whole out of another process
        return type(self), (self.code, self.message, self.hint, self.answer)

    def _render_traceback_(self) -> list[str]:  # what a notebook shows of it
        return [f"holdfast.Stop: {self}"]

    def __str__(self) -> str:
        return self.message if not self.hint else f"{self.message}\n  -> {self.hint}"


class DeviceGone(Exception):
    """The GPU of the run's plan is not there. The message: what torch says instead."""


def error_message(error: Exception) -> str:
    """Return kind and first line of an error that another package raised."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


def is_no_memory(printed: str) -> bool:
    """True if the loader of libraries said that it had no memory, or no addresses (ulimit -v), for one."""
    return any(words in printed for words in ("failed to map segment", "cannot allocate memory", "Cannot allocate memory"))


class DamagedFile(Stop, ValueError):
    """A file of a run that does not hold what it should. A ValueError as well, for those who go on without the file."""


def damaged(path: Path, why: str) -> DamagedFile:
    """Return the error for a damaged file, with the reason."""
    return DamagedFile(BLOCKED, f"{path} is damaged: {why}", "restore that file; holdfast status and diagnose read what is left")


# What reading values of a wrong kind raises: a file of a folder that was damaged, or that somebody else has written.
WRONG_VALUES = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, AssertionError, RecursionError)


def wrong_value(name: str, error: BaseException) -> str:
    """Say that something cannot be read, and why."""
    return f"{name} cannot be read: {getattr(error, 'strerror', None) or repr(error)[:300]}"


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Raise Stop(1) for values in a run folder that no run writes. It names the place, for that may be a bug of ours all the same."""
    try:
        yield
    except Stop:
        raise
    except WRONG_VALUES as error:
        ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "holdfast" in frame.filename] or traceback.extract_tb(None)
        place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        text = f"{folder} holds values that no run writes ({type(error).__name__}: {str(error)[:200]}{place})"
        raise Stop(BLOCKED, text, "restore its files; holdfast status tells what of them can be read") from error
