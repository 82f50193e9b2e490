"""How long to wait before the next start, and since when a GPU is missing: told when it is back. Decides nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from holdfast.run.folder import RunFolder

T = TypeVar("T")
_FIRST_S, _MOST_S = 0.1, 5.0  # between starts that come to nothing
_FIRST_AWAY_S, _MOST_AWAY_S = 1.0, 30.0  # between two looks for a GPU


class Clock(Protocol):
    """What tells the seconds and lets them pass: the module `time`, or one in which nobody waits."""

    def monotonic(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...


class Pauses:
    """Wait longer between starts that come to nothing: 0.1 s, 0.2 s, ... 5 s, for a GPU 1 s, 2 s, ... 30 s; not at all after progress.

    between: the first pause between two starts and the longest one, where they are others.
    """

    def __init__(
        self, run: RunFolder, tell: Callable[[str], None], clock: Clock = time, between: tuple[float, float] = (_FIRST_S, _MOST_S)
    ) -> None:
        self.run, self.tell, self.clock, self.between = run, tell, clock, between
        self.seconds = 0.0
        self._gone: float | None = None

    def after(self, progressed: bool) -> None:
        """Set the next pause after an attempt's end: none where it progressed, else twice the last."""
        first, most = self.between if self._gone is None else (_FIRST_AWAY_S, _MOST_AWAY_S)
        self.seconds = 0.0 if progressed else min(most, max(first, self.seconds * 2))

    def wait(self, stop: Callable[[], bool]) -> None:
        end = self.clock.monotonic() + self.seconds
        while self.clock.monotonic() < end and not stop():
            self.clock.sleep(0.02)

    def until_found(self, ask: Callable[[], T], gone: object, reason: str, stop: Callable[[], bool]) -> T:
        """Ask again and again while the answer is that the GPU is `gone`, for run.device_s seconds; return the last answer."""
        limit_s = self.run.config().run.device_s
        while (answer := ask()) == gone and not stop():
            away_s = self.missing(reason)
            if away_s >= limit_s:
                return answer
            if not away_s:
                self.tell(f"the GPU is gone; looking for it again for {limit_s:g} s (run.device_s)")
            self.after(progressed=False)
            self.wait(stop)
        if answer != gone:
            self.found()
        return answer

    def missing(self, reason: str) -> float:
        """Note that what was started found no GPU; return seconds since the first in a row that did not, 0 for that one."""
        if self._gone is not None:
            return self.clock.monotonic() - self._gone
        self._gone = self.clock.monotonic()
        self.run.event("device_gone", step=self.run.committed(), reason=reason)
        return 0.0

    def found(self) -> None:
        """Note that what was started computes, or got far enough to end otherwise: the GPU is there."""
        if self._gone is not None:
            seconds, self._gone = self.clock.monotonic() - self._gone, None
            self.run.event("device_back", after_seconds=round(seconds, 1))
            self.tell(f"the GPU is back after {seconds:.0f} s; continuing")
