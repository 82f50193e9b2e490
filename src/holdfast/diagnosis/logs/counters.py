"""How far a program says it is, in what it prints: progress bars, `step 12/100`, or what a user's own expression finds. Pure."""

from __future__ import annotations

import re

_BAR = re.compile(r"^([^|%\d]*)\d{1,3}%\|[^|]*\| *(\d+)/(\d+) \[")  # tqdm's
_OF_TRAINING = re.compile(r"train|step|epoch|iter", re.I)
_WORDS = re.compile(r"\b(?:global[ _]?)?(?:step|iter(?:ation)?)s?\b['\"]?\s*[:=#]?\s*(\d{1,9})\b(?:\s*(?:/|of)\s*(\d{1,9})\b)?", re.I)
_SIGHTINGS = 3  # of a growing number beside a word, before it is believed to count steps
_LONGEST = 1 << 14  # characters of an unfinished line that are kept


class Counter:
    """The newest step in a stream of output. `own`: a user's expression, whose first group is the step and whose second the total."""

    def __init__(self, own: re.Pattern[str] | None = None) -> None:
        self.own = own
        self.step: int | None = None
        self.total: int | None = None
        self._rest = ""
        self._bars = 0  # the longest bar's total, 0: there is none
        self._told: tuple[int, int] | None = None  # (number beside a word, how often it grew)

    def feed(self, text: str) -> None:
        """Look at what was printed since the last time."""
        lines = re.split(r"[\r\n]", self._rest + text)
        self._rest = lines.pop()[-_LONGEST:]
        for line in lines:
            self._look(line[-_LONGEST:])
        if self._rest.endswith("]") or self._rest.endswith("}"):  # a bar is ended by the next one's \r
            self._look(self._rest)

    def end(self) -> None:
        """Nothing follows: look at a last line that was not ended, too."""
        self._look(self._rest)
        self._rest = ""

    def _look(self, line: str) -> None:
        if self.own is not None:
            if found := self.own.search(line):
                self._take(found[1], found[2] if self.own.groups > 1 else None)
        elif bar := _BAR.match(line):
            name, total = bar[1].strip(), int(bar[3])
            if (not name or _OF_TRAINING.search(name)) and total >= self._bars:  # an evaluation's is shorter
                self._bars = total
                self._take(bar[2], bar[3])
        elif not self._bars and (word := _WORDS.search(line)) and int(word[2] or 0) >= (self.total or 0):
            self._take_word(int(word[1]), word[2])

    def _take(self, step: str | None, total: str | None) -> None:
        if step is not None and step.isdecimal():
            self.step = int(step)
        if total is not None and total.isdecimal():
            self.total = int(total)

    def _take_word(self, number: int, total: str | None) -> None:
        last, times = self._told or (number, 1)
        if number > last:
            times += 1
        self._told = (number, times)
        if times >= _SIGHTINGS:
            self.step = number
            self.total = int(total) if total else self.total
