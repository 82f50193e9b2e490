"""Which epoch a program says it is in, and counts of steps that begin anew with each epoch. Pure."""

from __future__ import annotations

import re

_EPOCH = re.compile(r"\bepochs?\b['\"]?\s*[:=#]?\s*[\[(]?\s*(\d{1,6})(?![\d.])(?:\s*(?:/|of)\s*(\d{1,6})\b)?", re.I)


class Epochs:
    """The epochs that lines announce (`Epoch 1/3`); where another number of them is announced, those count from then on."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.newest: int | None = None  # as it was printed
        self._lowest: int | None = None
        self._counted = False  # by a bar, which tells how many are done

    def look(self, line: str) -> None:
        """Look at a line that may announce an epoch, unless a bar counts them: the name of a bar below it is of the next one."""
        if not self._counted and (found := _EPOCH.search(line)):
            self._take(int(found[1]), int(found[2]) if found[2] else None)

    def done(self, number: int, total: int) -> None:
        """Take from a bar of epochs how many are done."""
        self._counted = True
        self._take(number, total)

    def _take(self, number: int, total: int | None) -> None:
        if total is not None and total != self.total:
            self.total, self.newest, self._lowest = total, number, number
        self.newest = max(number, self.newest or 0)
        self._lowest = number if self._lowest is None else min(number, self._lowest)

    @property
    def before(self) -> int:
        """Epochs before the newest one."""
        one = 0 if self._lowest == 0 or self._counted else 1
        return max(0, (self.newest or 0) - one)

    @property
    def is_late(self) -> bool:
        """Whether the first epoch seen may be a later one, of how many nobody said: Lightning counts them from 0."""
        return self.total is None and bool(self._lowest)

    @property
    def begun(self) -> tuple[int, int | None] | None:
        """(epochs begun, epochs announced, None: not told); None where it spoke of none."""
        if self.newest is None:
            return None
        begun = self.newest + (1 if self._lowest == 0 and not self._counted else 0)
        return min(begun, self.total or begun), self.total


class Rounds:
    """One count of steps over all its rounds: a bar, or a number beside a word, that begins anew with each epoch."""

    def __init__(self) -> None:
        self._base = self._last = self._epoch = 0
        self._lowest: int | None = None

    @property
    def has_begun_anew(self) -> bool:
        """Whether there was more than one round."""
        return self._base > 0

    def take(self, step: int, total: int, epochs: Epochs, may_begin_anew: bool) -> tuple[int, int]:
        """Convert a step of this round to (step, total) over all rounds; a total of 0 is not known.

        A count begins anew behind its last step, or with another epoch. may_begin_anew: False where the total is known to be of all steps.
        """
        ended = (total == self._last and step <= 1) or (total == self._last + 1 and step == 0)
        if may_begin_anew and step < self._last and (ended or epochs.before > self._epoch):
            self._base += total or self._last + (self._lowest == 0)
            self._base = max(self._base, epochs.before * total)
        if may_begin_anew and self._lowest is None and epochs.total and step * epochs.total <= epochs.before * total:
            self._base = epochs.before * total  # too few for a count of all steps: the training goes on in a later epoch
        self._last, self._epoch = step, epochs.before
        self._lowest = step if self._lowest is None else min(step, self._lowest)
        whole = max(self._base + total, (epochs.total or 0) * total) if self._base else total
        return self._base + step, whole if total else 0
