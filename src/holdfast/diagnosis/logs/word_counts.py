"""Counts of steps beside a word (`step 12/100`), one for each name before it, and which of them is the training's own. Pure."""

from __future__ import annotations

from typing import Self

_CLOSE = 3  # times a count's growth: a number that much further continues it, under whatever name
_OFTEN = 3


def first_of(first: int | None, last: int | None, number: int) -> int | None:
    """Return the first step above 0 of a count that goes on with `number`; one that was never passed was no step of it."""
    return number or None if not first or (number < first and last == first) else first


class WordCount:
    """One count. last: its newest number over all epochs and stages; total: of how many, 0: not told; times: how often it grew.

    began: its very first number; sure: a loss stood beside it; anew: it fell back to its beginning, and how far it goes is not known.
    """

    def __init__(self, name: str, number: int, of_round: int, total: int, of_evaluation: bool) -> None:
        self.name, self.total, self.of_evaluation = name, total, of_evaluation
        self.last, self.first, self.began = number, number or None, number
        self.times, self.gap, self.sure, self.anew = 1, 0, False, False
        self._of_stage, self._base, self._stages = total, 0, [of_round, total]

    def take(self, number: int, total: int, of_round: int, sure: bool) -> Self:
        """Note its next number. Where a count with losses is at its end, one to another length is another stage, behind it."""
        fell = number + self._base < self.last and self.times > 1
        if sure and fell and total != self._of_stage and self.has_ended:
            self._base += self._of_stage
        alone = self.times == 1 and self.sure and number < self.last  # one step with a loss: of a stage before, or of where it is to go on
        self.anew |= sure and (fell or alone) and not total and number <= max(self.gap, 1)
        if total:
            self._of_stage, self.total = total, self._base + total
            self._stages += [of_round, total, self.total]
        number += self._base
        self.first = first_of(self.first, self.last, number)
        if number > self.last:
            self.gap, self.times = self.gap or number - self.last, self.times + 1
        self.last, self.sure = number, self.sure or sure
        return self

    def begins_stage(self) -> bool:
        """Count on behind its last step, where losses led to it: a stage of another name begins. Return whether that was so."""
        ended = self.sure and self.times > 1 and not self.of_evaluation and self.has_ended
        self._base += self._of_stage if ended else 0
        return ended

    @property
    def has_stages(self) -> bool:
        """Whether another stage has begun behind its last step."""
        return self._base > 0

    @property
    def has_ended(self) -> bool:
        """Whether its last number is of its last step, or the next would be beyond it."""
        return 0 < self._of_stage < self.last - self._base + max(self.gap, 1)

    @property
    def shows_steps(self) -> bool:
        """Whether numbers beside losses count steps: one alone does where it is the first or the last of all; another's may be any."""
        return self.sure and (self.times > 1 or self.last in (1, self.total))

    @property
    def claim(self) -> tuple[bool, bool, bool, bool, int]:
        """Return what speaks for its being the training's own: no evaluation, losses or many sightings, it began here, its length.

        Of two that did not begin here, one that goes on has losses, and the other may be a server's beside it.
        """
        seen, goes_on = self.sure or self.times >= _OFTEN, self.sure and not self.began_here
        return not self.of_evaluation, seen, self.began_here, goes_on, self.total

    @property
    def began_here(self) -> bool:
        """Whether its first number is that of a beginning."""
        return self.first is None or self.first <= max(self.gap, 1)

    @property
    def trains(self) -> bool:
        """Whether nothing is left to be doubted: it grew from its beginning, with losses beside it."""
        return self.sure and self.times >= _OFTEN and self.began_here and not self.of_evaluation

    def is_of(self, total: int) -> bool:
        """Return whether it counts, or one of its stages, up to a total."""
        return total in self._stages

    def continues_with(self, number: int, of_round: int) -> bool:
        """Return whether a number of another name (the day has changed in it) goes on with this count."""
        return bool(self.gap) and of_round in self._stages[-3:] and 0 < number + self._base - self.last <= _CLOSE * self.gap

    def rivals(self, length: int, nameless: bool) -> bool:
        """Return whether this may as well be the training's own count as one of that length; with a total, once it grew.

        nameless: the other has no name. Beside it a number with a total, and without another's name, need not have grown.
        """
        seen = self.sure or self.times >= ((1 if nameless and not self.name else 2) if self.total else _OFTEN)
        return not self.of_evaluation and (self.total or self.last) > length and seen
