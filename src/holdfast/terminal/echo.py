"""Show a growing file on an output of ours, as it is. An output that nobody reads is waited for by nobody."""

from __future__ import annotations

import contextlib
import os
import select
import time
from pathlib import Path

_CHUNK = 4096  # bytes a pipe takes whole when it takes any (PIPE_BUF)
_AT_ONCE = 512  # chunks
_BEHIND = 8 << 20  # bytes; further back nothing is shown
_LAST_S = 5.0


class Echo:
    """descriptor: of the output. Once a write fails nothing is shown any more."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.file: Path | None = None
        self.ended_line = True
        self._at = 0
        self._open: int | None = None  # the file, which is shown to its end where its name was removed

    def follow(self, file: Path, from_end: bool = False) -> None:
        """Show this file from now on, from its beginning or from where it ends now."""
        self.file, self._at = file, file.stat().st_size if from_end and file.exists() else 0
        self._close()

    def look(self) -> bool:
        """Show what is new, as far as the output takes it; return whether something was shown."""
        if self.file is None:
            return False
        try:
            size = self._size(self.file)
            if size < self._at or size - self._at > _BEHIND:  # cut in its middle, or a flood
                self._at = max(0, size - _BEHIND // 8)
            assert self._open is not None
            return self._show(os.pread(self._open, _AT_ONCE * _CHUNK, self._at))
        except FileNotFoundError:
            return False
        except OSError:
            self.file = None
            return False

    def _size(self, file: Path) -> int:
        if self._open is None:
            self._open = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        return os.fstat(self._open).st_size

    def _close(self) -> None:
        if self._open is not None:
            os.close(self._open)
        self._open = None

    __del__ = _close

    def _show(self, data: bytes) -> bool:
        begin = self._at
        for at in range(0, len(data), _CHUNK):
            if not select.select((), (self.descriptor,), (), 0)[1]:
                break
            self._at += os.write(self.descriptor, data[at : at + _CHUNK])
        shown = self._at - begin
        if shown:
            self.ended_line = data[shown - 1 : shown] == b"\n"
        return shown > 0

    def drain(self) -> None:
        """Show what is left of the file, for as long as somebody reads it; what follows begins a new line."""
        until = time.monotonic() + _LAST_S
        while self.file is not None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                if self._at == self._size(self.file):  # beyond it: cut in its middle since
                    break
            if self.look():
                until = time.monotonic() + _LAST_S
            else:
                time.sleep(0.02)
        if not self.ended_line and self.file is not None:
            with contextlib.suppress(OSError):
                os.write(self.descriptor, b"\n")
            self.ended_line = True
