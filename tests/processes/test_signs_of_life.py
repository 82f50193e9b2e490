"""What the kernel counts of a process is a sign of life; one of which it counts nothing is not judged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from holdfast.processes.signs_of_life import SignsOfLife, counted


def watched(counts: list[tuple[int, ...] | None]) -> tuple[SignsOfLife, Iterator[float]]:
    times = iter(range(100))
    told = iter(counts)
    signs = SignsOfLife(1, lambda _: next(told), lambda: float(next(times)))
    return signs, iter(signs.silent_s, -1.0)


def test_silence_is_counted_from_the_last_change() -> None:
    _, silent = watched([(1,), (2,), (2,), (2,), (3,), (3,)])
    assert [next(silent) for _ in range(5)] == [0.0, 1.0, 2.0, 0.0, 1.0]


def test_one_of_which_nothing_was_ever_counted_is_not_judged() -> None:
    _, silent = watched([(0,)] * 5)
    assert [next(silent) for _ in range(4)] == [0.0] * 4
    _, silent = watched([None] * 5)
    assert [next(silent) for _ in range(4)] == [0.0] * 4


def test_one_that_was_stopped_before_it_was_first_seen_is_silent() -> None:
    _, silent = watched([(1,)] * 4)
    assert [next(silent) for _ in range(3)] == [1.0, 2.0, 3.0]


def test_a_time_without_work_is_no_silence() -> None:
    signs, silent = watched([(1,), (2,), (2,), (2,), (2,), (2,)])
    assert [next(silent) for _ in range(3)] == [0.0, 1.0, 2.0]
    signs.begin()
    assert next(silent) == 1.0


def test_a_waiting_process_counts_and_a_stopped_one_does_not() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"]) as child:
        first = counted(child.pid)
        while counted(child.pid) == first:
            pass
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        assert counted(child.pid) == counted(child.pid)
        child.kill()
    assert counted(child.pid) is None
