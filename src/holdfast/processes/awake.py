"""Time as a watcher lived through it: what it slept for itself (suspended, stopped, paused), nobody it watches was silent for."""

from __future__ import annotations

import time
from collections.abc import Callable


class Awake:
    """A clock that is asked again and again and goes on by at most `most_s` from one look to the next.

    A closed lid, `docker pause`, SIGSTOP to everything, a paused virtual machine: between two looks hours may pass in which the watched
    slept as well. Clocks that are set back or forward do not touch it.
    """

    def __init__(self, most_s: float, clock: Callable[[], float] | None = None) -> None:
        self.most_s, self._clock = most_s, clock or time.monotonic
        self._looked, self._lived = self._clock(), 0.0

    def now(self) -> float:
        """Return the seconds since the first look, less those slept through."""
        looked = self._clock()
        self._lived += min(looked - self._looked, self.most_s)
        self._looked = looked
        return self._lived
