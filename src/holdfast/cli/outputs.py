"""Standard output and standard error of a command: a full disk below one of them ends nothing."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from holdfast.base.errors import BLOCKED, DONE, Stop
from holdfast.base.file_errors import fact_of
from holdfast.base.files import takes_nothing


class _Output(io.FileIO):
    """What a disk does not take is lost, and the writer goes on. refused: why the newest write was, if it was."""

    refused: OSError | None = None

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._of_terminal = self.isatty()  # one that is gone says no

    def write(self, data: Any, /) -> int:
        try:
            written, self.refused = super().write(data), None
        except OSError as error:
            if self._of_terminal or not takes_nothing(error):  # a terminal that is gone is dealt with by who writes to it
                raise
            written, self.refused = memoryview(data).nbytes, error
        return written


def at_terminal() -> bool:
    """True if somebody can be asked: standard input and standard output are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def guard_outputs() -> None:
    """Let no disk that takes nothing end what the command does by an error of sys.stdout or sys.stderr."""
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if isinstance(old, io.TextIOWrapper):  # None where it is closed
            old.flush()
            below = io.BufferedWriter(_Output(old.fileno()))
            setattr(sys, name, io.TextIOWrapper(below, old.encoding, old.errors, None, old.line_buffering, old.write_through))


def code_of_output(code: int) -> int:
    """Return the exit code, 1 in place of 0 where the end of standard output was not taken by a disk; that is told on standard error."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # it is closed
                stream.flush()
        except BrokenPipeError:  # whoever reads it had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    if not isinstance(raw, _Output):
        return code
    if raw.refused is None:
        return code
    done = "what it said is lost, what it did is done" if code == DONE else "what it said is lost"
    hint = "send it to a place with room; `holdfast status` tells of runs"
    told = Stop(BLOCKED, f"{fact_of(raw.refused, 'standard output')}: {done}", hint)
    print(f"holdfast: {told}", file=sys.stderr)
    return code or BLOCKED
