"""SIGTERM ends a command as Ctrl-C does: what it had begun to write is taken away, and it says so. Standard library only."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from holdfast.base.wait import Flag

PATIENCE_S = 3.0  # for a call into a library to come back
_END = 0  # no signal's number: the thread's work is done
_told = -1  # where this process tells its thread of signals


@contextlib.contextmanager
def as_ctrl_c(code: int) -> Iterator[None]:
    """Have SIGTERM raise KeyboardInterrupt inside; where a library is busy (a tokenizer), the process leaves with `code` after a while.

    Changes nothing where somebody hears SIGTERM already, or where this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    heard, own = Flag(), os.getpid()

    def hear(number: int, frame: FrameType | None) -> None:
        heard.set()
        if os.getpid() != own:  # a forked worker: ended by its parent
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(ctrl_c):
            ctrl_c(signal.SIGINT, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, hear)
    with _watched(heard, code):
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a command may have put another in its place


def is_ours(descriptor: int) -> bool:
    """True if signals are told of by a descriptor of this module, which another may take the place of."""
    return descriptor == _told != -1


@contextlib.contextmanager
def _watched(heard: Flag, code: int) -> Iterator[None]:
    """Have a thread end the process where a signal is not heard while this lasts: Python hears none while a library is busy."""
    global _told
    sent, told = os.pipe()
    os.set_blocking(told, False)
    if (before := signal.set_wakeup_fd(told, warn_on_full_buffer=False)) != -1:  # a loop's, as in a notebook
        signal.set_wakeup_fd(before)
        os.close(sent)
        os.close(told)
        yield
        return
    _told = told
    forget_in_forks()
    thread = threading.Thread(target=_end_unheard, args=(sent, heard, code), daemon=True)
    thread.start()
    try:
        yield
    finally:
        _told = -1
        if (now := signal.set_wakeup_fd(-1)) != told:
            signal.set_wakeup_fd(now)
        heard.set()
        with contextlib.suppress(BlockingIOError):  # a thousand signals wait there
            os.write(told, bytes([_END]))
        thread.join()
        os.close(told)


@functools.cache
def forget_in_forks() -> None:
    """Tell nobody of the signals of processes that are forked from here on: the pipe and its thread are their parent's."""
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    with contextlib.suppress(ValueError):  # forked by another thread than the first
        signal.set_wakeup_fd(-1)


def _end_unheard(sent: int, heard: Flag, code: int) -> None:
    while (number := os.read(sent, 1)[0]) != _END:
        if number == signal.SIGTERM and not heard.wait(PATIENCE_S):
            with contextlib.suppress(OSError):
                print("\nholdfast: interrupted", file=sys.stderr, flush=True)
            os._exit(code)
    os.close(sent)
