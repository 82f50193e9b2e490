"""Sleep until a process ends; note in words what is waited for. Standard library only, because the shim uses it too."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Iterable, Iterator

_POLL_S = 0.02
_LOOK_S = 0.05  # at a flag
_noted: list[list[str]] = []  # a list each, so that one is found again by what it is and not by its words


def wait_for_end(pids: Iterable[int], timeout_s: float, bell: socket.socket | None = None) -> bool:
    """Return as soon as one of these processes has ended, the bell is rung, or after `timeout_s`: whether a process may have ended.

    Where the kernel cannot tell, that is after 20 ms.
    """
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        try:
            for pid in pids:
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
        except ProcessLookupError:
            return True
        except (AttributeError, OSError):  # macOS; Linux before 5.3; a sandbox that forbids it
            time.sleep(min(timeout_s, _POLL_S))
            return True
        if bell is not None:
            poll.register(bell, select.POLLIN)
        return any(bell is None or descriptor != bell.fileno() for descriptor, _ in poll.poll(timeout_s * 1000))


class Flag:
    """An event that a signal handler may set.

    threading.Event takes a lock in `set`: a second signal that arrives meanwhile, as `timeout` sends one, would deadlock in its handler.
    """

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    def wait(self, seconds: float | None = None) -> bool:
        """Return whether it is set, as soon as it is, or after so many seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self._set and (end is None or time.monotonic() < end):
            time.sleep(_LOOK_S if end is None else max(0.0, min(_LOOK_S, end - time.monotonic())))
        return self._set


@contextlib.contextmanager
def doing(words: str) -> Iterator[list[str]]:
    """Note what is done while the block runs, for who tells it meanwhile; inside another block it is a part of that.

    Yields the note, whose only element may be replaced as the work goes on.
    """
    note = [words]
    _noted.append(note)
    try:
        yield note
    finally:
        _noted[:] = [other for other in _noted if other is not note]


def what_is_done() -> str:
    """Return all that is noted, "overfit (3 of 7): a course of 24 steps"; empty where nothing is."""
    return ": ".join(words for note in _noted for words in note)
