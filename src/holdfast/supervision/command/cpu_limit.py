"""Work of other people's making, a regular expression say, within a limit of processor time. Says nothing of what is worked on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class TooSlow(Exception):
    """The limit was reached; the work was left."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TooSlow in what stands inside after `seconds` of user time; in another thread than the main one there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
