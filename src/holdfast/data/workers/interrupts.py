"""Ctrl-C that is not lost in other people's code: a callback or a destructor may swallow the exception. Ends nothing by itself."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupts:
    """Inside, Ctrl-C raises KeyboardInterrupt where it strikes, and again at the next `check` where that was swallowed."""

    count = 0  # of all that were heard in this process, by any

    def __init__(self) -> None:
        self.heard = False

    def __enter__(self) -> Interrupts:
        self._of_ours = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._hear) if self._of_ours else None
        return self

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self.heard = True
        Interrupts.count += 1
        raise KeyboardInterrupt

    def check(self) -> None:
        if self.heard:
            raise KeyboardInterrupt

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._of_ours:
            signal.signal(signal.SIGINT, self._before)
        if kind is None:
            self.check()
