"""How far a program says it is, in what it prints: progress bars, `step 12/100`, or what a user's own expression finds. Pure."""

from __future__ import annotations

import re

from holdfast.diagnosis.logs.epochs import Epochs, Rounds

# tqdm's, with its bar or, where there is no room for one, without; what stands behind the clock holds the unit: 3.20it/s, 800 examples/s
_BAR = re.compile(r"^([^|%]*?)(?:\d{1,3}%\|[^|]*\|)? *(\d{1,12})/(\d{1,12}) \[[\d:?]+<[^,\]]*(?:, *([^,\]]*))?")
_UNIT = re.compile(r"([A-Za-z]*) *(?:/ *s\b|$)")  # of 3.20it/s
_SLOW_UNIT = re.compile(r"s/([A-Za-z]+)")  # of 2.10s/it
_UNITS_OF_STEPS = re.compile(r"k?(?:it|iter(?:ation)?|step|batch|update|epoch)(?:e?s)?", re.I)
_OF_EPOCHS = re.compile(r"epochs:?", re.I)  # the name of a bar over epochs; "Epoch 2/3:" is one of an epoch's steps
_OF_TRAINING = re.compile(r"train|step|epoch|iter", re.I)
# what is done to rows, files and weights before, between and after steps, though it is called "train dataset"
_OF_OTHERS = re.compile(
    r"data|split|map|filter|tokeni[sz]|encod|pack|truncat|template|token|row|sample|example|feature|prompt|cach|shard|file|extract|convert"
    r"|process|prepar|generat|download|upload|push|fetch|load|read|sav|writ|skip|eval|valid|test|predict|merg|quanti|embed|score",
    re.I,
)
_WORDS = re.compile(r"\b(?:global[ _]?)?(?:step|iter(?:ation)?)s?\b['\"]?\s*[:=#]?\s*(\d{1,9})\b(?:\s*(?:/|of)\s*(\d{1,9})\b)?", re.I)
_LOSS = re.compile(r"(?<![a-z])loss['\"]?\s*[:=]?\s*[-+]?\d", re.I)  # on a line of its own step: no other proof is needed
_OF_EVALUATION = re.compile(r"eval|valid|val(?![a-z])|test", re.I)
SIGHTINGS = 3  # of a growing number beside a word, before it is believed to count steps
_LONGEST = 1 << 14  # characters of an unfinished line that are kept


class Counter:
    """The newest step in a stream of output. `own`: a user's expression, whose first group is the step and whose second the total.

    sightings: how often a number beside a word must have grown before it counts steps; one beside a loss counts at once.
    step, first: the newest and the lowest step above 0; total: of how many. None: not told. Of a count that begins anew with each epoch
    they are those of all epochs. epochs: what was said of those.
    """

    def __init__(self, own: re.Pattern[str] | None = None, sightings: int = SIGHTINGS) -> None:
        self.own, self.sightings = own, sightings
        self.step: int | None = None
        self.first: int | None = None
        self.total: int | None = None
        self.epochs = Epochs()
        self._rounds: dict[tuple[str, int], Rounds] = {}  # by the letters before a count, and its total
        self._longest_word = 0  # total beside a word, of one round
        self._rest = ""
        self._bars = 0  # the longest bar's total, 0: there is none
        self._told: tuple[int, int, int] | None = None  # (number beside a word, how often it grew, the lowest one)
        self._certain: int | None = None
        self._lengths: dict[int, tuple[int, int | None]] = {}  # by a count's total: its newest and its lowest step

    def feed(self, text: str) -> None:
        """Look at what was printed since the last time."""
        lines = re.split(r"[\r\n]", self._rest + text)
        self._rest = lines.pop()[-_LONGEST:]
        for line in lines:
            self._look(line[-_LONGEST:])
        if self._rest.endswith("]") or self._rest.endswith("}"):  # a bar is ended by the next one's \r
            self._look(self._rest)

    def end(self) -> None:
        """Look at a last line that was not ended: nothing follows."""
        self._look(self._rest)
        self._rest = ""
        if not self._bars and self._told and self._told[2] == 0 and self.step is not None and self.step + 1 == self.total:
            self.step = self.total  # `step 0/5` to `step 4/5`

    def of(self, total: int) -> None:
        """Take the number of steps from a better source: what counts up to another number counts something else."""
        if self.own is not None or total == self._certain:
            return
        self._certain = total
        if self.total is not None and self.total != total:
            self.step, self.first = self._lengths.get(total, (None, None))
            self.total = total if self.step is not None else None

    def _look(self, line: str) -> None:
        if self.own is not None:
            if found := self.own.search(line):
                self._take(found[1], found[2] if self.own.groups > 1 else None)
            return
        bar = _BAR.match(line)
        if bar and _of_epochs(bar[1], bar[4] or ""):
            self.epochs.done(int(bar[2]), int(bar[3]))
            if not self._bars:
                self.step, self.first, self.total = int(bar[2]), self.first or int(bar[2]) or None, int(bar[3])
            return
        self.epochs.look(line)
        if bar:
            if _counts_steps(bar[1].strip(), bar[4] or ""):
                self._take_bar(bar[1], int(bar[2]), int(bar[3]))
        elif not self._bars and (word := _WORDS.search(line)) and self._fits(int(word[2] or 0), word[2] is not None):
            sure = bool(_LOSS.search(line)) and not _OF_EVALUATION.search(line)
            self._take_word(*self._whole(line[: word.start()], int(word[1]), int(word[2] or 0)), int(word[2] or 0), sure)

    def _fits(self, total: int, told: bool) -> bool:
        """Return whether a number beside a word may count steps: an evaluation's total is shorter, and a known one is the only one."""
        return total >= self._longest_word and not (told and self._certain and total != self._certain)

    def _whole(self, name: str, step: int, total: int) -> tuple[int, int]:
        rounds = self._rounds.setdefault((re.sub(r"[^A-Za-z]+", "", name), total), Rounds())
        return rounds.take(step, total, self.epochs, total != self._certain)

    def _take_bar(self, name: str, step: int, total: int) -> None:
        of_round = total
        step, total = self._whole(name, step, total)
        before = self._lengths.get(total)
        low = min(filter(None, (step, before[1] if before else None, self.first if total != of_round else None)), default=None)
        self._lengths[total] = step, low
        if total == self._certain if self._certain else of_round >= self._bars:  # an evaluation's is shorter
            self._bars = of_round
            self.step, self.first, self.total = step, low, total

    def _take(self, step: str | None, total: str | None) -> None:
        if step is not None and step.isdecimal():
            self.step = int(step)
            self.first = min(filter(None, (self.step, self.first)), default=None)
        if total is not None and total.isdecimal():
            self.total = int(total)

    def _take_word(self, number: int, total: int, of_round: int, sure: bool) -> None:
        last, times, low = self._told or (number, 1, number)
        if number > last:
            times += 1
        low = min(low, number)
        self._told = (number, times, low)
        if times >= self.sightings or sure:
            self.step, self.first = number, low or None
            self.total, self._longest_word = (total, of_round) if total else (self.total, self._longest_word)


def _of_epochs(name: str, rate: str) -> bool:
    """Return whether a bar counts epochs, by its name or its unit."""
    return bool(_OF_EPOCHS.fullmatch(name.strip()) or re.search(r"epochs?/|/ *epoch", rate, re.I))


def _counts_steps(name: str, rate: str) -> bool:
    """Return whether a bar may count steps, by its name and its unit; one of examples, bytes or files never does."""
    unit = next((found[1] for pattern in (_SLOW_UNIT, _UNIT) if (found := pattern.search(rate))), "")
    if unit and not _UNITS_OF_STEPS.fullmatch(unit):
        return False
    return not name or bool(_OF_TRAINING.search(name) and not _OF_OTHERS.search(name))
