"""How far a program says it is, in what it prints: progress bars, `step 12/100`, or what a user's own expression finds. Pure."""

from __future__ import annotations

import re

from holdfast.diagnosis.logs.epochs import Epochs, Rounds
from holdfast.diagnosis.logs.word_counts import WordCount, first_of

# tqdm's, with its bar or, where there is no room for one, without; what stands behind the clock holds the unit: 3.20it/s, 800 examples/s
_BAR = re.compile(r"^([^|%]*?)(?:\d{1,3}%\|[^|]*\|)? *(\d{1,12})/(\d{1,12}) \[[\d:?]+<[^,\]]*(?:, *([^,\]]*))?")
# Lightning's, of an epoch that it goes on with
_OPEN_BAR = re.compile(r"^([^|%]*?):? *\|[^|]*\| *(\d{1,12})/\? \[[\d:?]+<[^,\]]*(?:, *([^,\]]*))?")
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
_ROW = re.compile(r"\s*\|.*\|\s*")  # of a table
_LOSS = re.compile(r"(?<![a-z])loss['\"]?\s*[:=]?\s*[-+]?\d", re.I)  # on a line of its own step: no other proof is needed
_OF_EVALUATION = re.compile(r"eval|valid|val(?![a-z])|test", re.I)
SIGHTINGS = 3  # of a growing number beside a word, before it is believed to count steps
_LONGEST = 1 << 14  # characters of an unfinished line that are kept


class Counter:
    """The newest step in a stream of output. `own`: a user's expression, whose first group is the step and whose second the total.

    sightings: how often a number beside a word must have grown before it counts steps; one beside a loss counts at once.
    step, first: the newest and the first step above 0; total: of how many. None: not told. Of a count that begins anew with each epoch,
    or goes on with another stage, they are those of all. epochs: what was said of those; rival: another count that was printed beside it.
    """

    def __init__(self, own: re.Pattern[str] | None = None, sightings: int = SIGHTINGS) -> None:
        self.own, self.sightings = own, sightings
        self.step: int | None = None
        self.first: int | None = None
        self.total: int | None = None
        self.epochs = Epochs()
        self._rounds: dict[tuple[str, int], Rounds] = {}  # by the letters before a count, and its total
        self._rest = ""
        self._bars = 0  # the longest bar's total, 0: there is none
        self._words: dict[str, WordCount] = {}  # by the letters before a number
        self._word: WordCount | None = None  # which of them is believed
        self._open = False  # whether what it shows is a bar without a length: how many steps of its round were left is not known
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

    def end(self, resumed: int = 0, well: bool = True) -> None:
        """Look at a last line that was not ended: nothing follows. resumed: after how many steps it was told to begin.

        well: its program was not ended in the middle of a step: one without a loss beside it was done, too.
        """
        self._look(self._rest)
        self._rest = ""
        word = None if self._bars else self._word
        if word and word.began in (0, resumed) and (well or word.sure) and self.step is not None and self.step + 1 == self.total:
            self.step = self.total  # `step 0/5` to `step 4/5`, or from `step 3/5` after three

    def of(self, total: int) -> None:
        """Take the number of steps from a better source: what counts up to another number counts something else."""
        if self.own is not None or total == self._certain:
            return
        self._certain = total
        if self._word is not None and (not self._word.total or self._word.is_of(total)):
            return
        self._word = None
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
                self._take_bar(bar[1], int(bar[2]), int(bar[3]), begins=(bar[4] or "").startswith("?"))
        elif (bar := _OPEN_BAR.match(line)) and _counts_steps(bar[1].strip(), bar[3] or ""):
            self._take_open(int(bar[2]))
        elif word := _WORDS.search(line):
            self._take_word(line, line[: word.start()].strip(), int(word[1]), int(word[2] or 0))

    def _whole(self, name: str, step: int, total: int) -> tuple[int, int]:
        rounds = self._rounds.setdefault((_letters(name), total), Rounds())
        return rounds.take(step, total, self.epochs, total != self._certain)

    def _take_bar(self, name: str, step: int, total: int, begins: bool) -> None:
        """Take a bar. begins: it has no rate yet, so what it shows was done by an earlier start."""
        of_round = total
        step, total = self._whole(name, step, total)
        before = self._lengths.get(total)
        low = min(
            filter(None, (0 if begins else step, before[1] if before else None, self.first if self._bars and total != of_round else None)),
            default=None,
        )
        self._lengths[total] = step, low
        longest = max(self._bars, self._word.last if self._word and self._word.sure else 0)
        if not _letters(name):  # of two counts without a name the one beside losses is the training's, though seen once
            longest = max(longest, *(one.last for one in self._words.values() if one.sure and not one.name), 0)
        if total == self._certain if self._certain else of_round >= longest:  # an evaluation's is shorter
            self._bars = of_round
            self.step, self.first, self.total = step, low, total

    def _take_open(self, step: int) -> None:
        """Take a bar without a length, where nothing else has shown steps yet."""
        if not self._bars and self._word is None:
            self._open, self.first, self.step = True, first_of(self.first, self.step, step), step

    def _take(self, step: str | None, total: str | None) -> None:
        if step is not None and step.isdecimal():
            self.first = first_of(self.first, self.step, int(step))
            self.step = int(step)
        if total is not None and total.isdecimal():
            self.total = int(total)

    def _take_word(self, line: str, name: str, number: int, of_round: int) -> None:
        """Take a number beside a word. Where a total is known for sure, only a stage behind the last step counts up to another."""
        sure = bool(_LOSS.search(line)) and not _OF_EVALUATION.search(line)
        if not sure and _ROW.fullmatch(line):
            return
        if of_round and self._certain and of_round != self._certain and not (sure and self._word and self._word.has_ended):
            return
        number, total = self._whole(name, number, of_round)
        known = [one for one in self._words.values() if one.continues_with(number, of_round)]
        count = self._words.get(_letters(name)) or (known[0] if known else None)
        if count is None and sure and number <= 1 and not _OF_EVALUATION.search(name):
            count = next((one for one in self._words.values() if one.begins_stage()), None)
        if count is None:
            count = WordCount(name, number, of_round, total, bool(_OF_EVALUATION.search(name)))
        self._words[_letters(name)] = count.take(number, total, of_round, sure)
        if self._bars and not (count.trains and count.last > (self.total or 0)):
            return
        if count.shows_steps or count.times >= self.sightings:
            self._bars = 0
            if self._word is None or count is self._word or count.claim >= self._word.claim:
                self._word = count
            self.step, self.first, self.total = self._word.last, self._word.first, self._word.total or None

    @property
    def rival(self) -> str:
        """Name another count that was printed beside the believed one, which it outlasted or was longer than; empty where there is none."""
        believed = (self.total or self.step or 0) if self._bars or self._word is None else (self._word.total or self._word.last)
        nameless = ("", self._bars) in self._rounds  # the believed bar does not say what it counts: one number beside a word is enough
        others = [one for one in self._words.values() if one is not self._word and believed and one.rivals(believed, nameless)]
        return f"{others[0].name!r} up to {others[0].total or others[0].last:,}".removeprefix("'' ") if others else ""

    @property
    def grew(self) -> bool:
        """Whether what was seen of the steps was more than one number beside a word."""
        return bool(self._bars) or self._word is None or self._word.times > 1

    @property
    def from_zero(self) -> bool:
        """Whether its numbers go from 0 to nobody knows where: the newest may be of one step more."""
        return not self._bars and self._word is not None and self._word.began == 0 and not self._word.total

    @property
    def begun_anew(self) -> bool:
        """Whether the believed count fell back to its beginning, with losses beside it: a stage of unknown length goes on."""
        return not self._bars and self._word is not None and self._word.anew

    @property
    def has_stages(self) -> bool:
        """Whether its numbers began anew behind a last step, or in a later epoch: a low number is then no proof of an early step.

        Other counts do so beside it: the bar of each evaluation.
        """
        word = None if self._bars else self._word
        anew = any(one.has_begun_anew for (_, total), one in self._rounds.items() if (word.is_of(total) if word else total == self._bars))
        words = word is not None and (word.anew or word.has_stages)
        return words or anew or self._open or (bool(self._rounds) and self.epochs.is_late)


def is_bar(line: str) -> bool:
    """Return whether a line is a progress bar, of whatever."""
    return bool(_BAR.match(line) or _OPEN_BAR.match(line))


def _letters(name: str) -> str:
    return re.sub(r"[^A-Za-z]+", "", name)


def _of_epochs(name: str, rate: str) -> bool:
    """Return whether a bar counts epochs, by its name or its unit."""
    return bool(_OF_EPOCHS.fullmatch(name.strip()) or re.search(r"epochs?/|/ *epoch", rate, re.I))


def _counts_steps(name: str, rate: str) -> bool:
    """Return whether a bar may count steps, by its name and its unit; one of examples, bytes or files never does."""
    unit = next((found[1] for pattern in (_SLOW_UNIT, _UNIT) if (found := pattern.search(rate))), "")
    if unit and not _UNITS_OF_STEPS.fullmatch(unit):
        return False
    return not name or bool(_OF_TRAINING.search(name) and not _OF_OTHERS.search(name))
