"""A line on standard error every ten seconds of a command that works: what it is at, and since when. Knows nothing of the work.

An alarm and no thread: workers are forked from a process of one thread.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator

from holdfast.base.inert import inert
from holdfast.base.units import span
from holdfast.base.wait import what_is_done

EVERY_S = 10.0
_STDERR = 2


@contextlib.contextmanager
def working(what: str, machine_reads: bool) -> Iterator[None]:
    """Tell what is done while the block runs, or `what`; where a machine reads the outputs (--json), on a terminal alone.

    Tells nothing outside the main thread, or where an alarm is set already.
    """
    here = threading.current_thread() is threading.main_thread() and not any(signal.getitimer(signal.ITIMER_REAL))
    if not here or (machine_reads and not os.isatty(_STDERR)):
        yield
        return
    began = time.monotonic()

    def tell(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more: the work goes on
            os.write(_STDERR, f"{line(time.monotonic() - began, what)}\n".encode())  # and not print, in which the alarm may have come

    before = signal.signal(signal.SIGALRM, tell)
    signal.setitimer(signal.ITIMER_REAL, EVERY_S, EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def line(seconds: float, what: str) -> str:
    """Return what is done (`what`: where nothing is noted) after so many seconds, in one line; cut to the width of a terminal."""
    told = inert(f"  {span(seconds)}: {what_is_done() or what}")
    most = shutil.get_terminal_size().columns - 1 if os.isatty(_STDERR) else len(told)
    return told if len(told) <= most else f"{told[: most - 1]}…"
