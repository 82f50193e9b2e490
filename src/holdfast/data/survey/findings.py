"""What a pass over whole files finds: counts, lengths, repetitions, examples. Takes surveys in the order of the rows; reads no file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.data.duplicates.seen import Mask, SeenKeys
from holdfast.data.duplicates.similar import Near
from holdfast.data.files.raw_row import Reject, Source
from holdfast.data.judge.row_weight import Weights
from holdfast.data.survey.languages import strays
from holdfast.data.survey.lengths import Lengths
from holdfast.data.survey.many_answers import ManyAnswers
from holdfast.data.survey.survey import Survey
from holdfast.data.tokens.shard import Block, BlockLike, Verdicts

EXAMPLES = 5  # rows quoted for one reason
_SHOWN = 300
_MOST_CATEGORIES = 500  # more are no categories, but take memory
OTHERS = "(others)"
_LINES = 40  # bits of a place that count lines from a block's first
Places = npt.NDArray[np.int64]


def _placed() -> SeenKeys:
    return SeenKeys(placed=True)


@dataclass
class Repetitions:
    """Which rows stood before, in this set or in the one held out, and where. A place is the number of a block and of a line in it."""

    pairs: SeenKeys = field(default_factory=_placed)
    prompts: SeenKeys = field(default_factory=_placed)
    near: Near = field(default_factory=Near)
    held_out: SeenKeys = field(default_factory=_placed)
    begins: list[Source] = field(default_factory=list)  # of each block its file and first line

    def hold_out(self, file: str, first_line: int, survey: Survey) -> None:
        places = self._places(file, first_line, survey)
        self.held_out.add_at(survey.pairs, places)
        asked = survey.prompts != 0
        self.held_out.add_at(survey.prompts[asked], places[asked])

    def take(self, file: str, first_line: int, survey: Survey) -> dict[str, Places]:
        """Return by kind, for each of the survey's rows, the place of one that it repeats, -1 where it repeats none."""
        places = self._places(file, first_line, survey)
        exact = self.pairs.add_at(survey.pairs, places)
        again = exact >= 0
        asked = np.flatnonzero(survey.prompts)
        conflicting, near = np.full((2, len(exact)), -1, np.int64)
        conflicting[asked] = self.prompts.add_at(survey.prompts[asked], places[asked])
        conflicting[again] = -1
        says = np.flatnonzero(
            survey.turned
        )  # several answers to one prompt are what pairs and marks are about: only the opposite conflicts
        opposite = self.pairs.places_of(survey.turned[says])
        conflicting[says] = np.where((opposite < places[says]) & ~again[says], opposite, -1)
        comparable = np.flatnonzero(survey.comparable)
        near[comparable] = self.near.add_at(survey.signatures[comparable], places[comparable])
        near[again | ((survey.turned != 0) & (conflicting >= 0))] = -1
        overlap = self.held_out.places_of(survey.pairs)
        overlap[asked] = np.maximum(overlap[asked], self.held_out.places_of(survey.prompts[asked]))
        return {"duplicate": exact, "near_duplicate": near, "conflicting_answer": conflicting, "in_held_out": overlap}

    def source(self, place: int) -> Source:
        """Return the file and line of a place."""
        file, first = self.begins[place >> _LINES]
        return Source(file, first + place % (1 << _LINES))

    def _places(self, file: str, first_line: int, survey: Survey) -> Places:
        self.begins.append(Source(file, first_line))
        places: Places = ((len(self.begins) - 1) << _LINES) + survey.lines.astype(np.int64)
        return places


_REPEATED = {
    "duplicate": "the same row stood before, but for case and spaces: {}",
    "near_duplicate": "a row that is about 80 % the same stood before: {}",
    "conflicting_answer": "the same prompt stood before with another answer: {}",
    "in_held_out": "the row, or its prompt, is among the held-out rows: {}",
}
_OPPOSITE = "what is the better answer here, or marked as good, is the worse one, or marked as bad, at {}"


@dataclass
class Findings:
    """Of all rows so far. `drop`: kinds of repetition that are rejected instead of counted alone; `survey`: surveys such rows alone: what
    was counted of them is taken off."""

    drop: frozenset[str] = frozenset()
    survey: Callable[[Block], Survey] | None = None
    verdicts: Verdicts = field(default_factory=Verdicts)
    files: dict[str, Verdicts] = field(default_factory=dict)
    layouts: dict[str, Counter[str]] = field(default_factory=dict)
    scripts: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    longer: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)
    lengths: Lengths = field(default_factory=Lengths)
    weights: Weights = field(default_factory=Weights)  # of the rows that are left
    repetitions: Repetitions = field(default_factory=Repetitions)
    repeated: Counter[str] = field(default_factory=Counter)
    rejected_for: Counter[str] = field(default_factory=Counter)
    same_as_held_out: int = 0  # of those in the held-out set: whole rows, and not the prompt alone
    examples: dict[str, list[Json]] = field(default_factory=dict)
    many_answers: ManyAnswers = field(default_factory=ManyAnswers)

    def take(self, file: str, block: BlockLike, survey: Survey) -> tuple[list[Json], Mask]:
        """Count a block; return its rejects in the order of the lines, and which of the survey's rows are left."""
        found = self.repetitions.take(file, block.first_line, survey)
        self.same_as_held_out += int((self.repetitions.held_out.places_of(survey.pairs) >= 0).sum())
        left = np.ones(len(survey.at), np.bool_)
        rejects = [*survey.entries("rejects", file, block.first_line)]
        for kind, places in found.items():
            mask = places >= 0
            self.repeated[kind] += int(mask.sum())
            for number in np.flatnonzero(mask & left) if kind in self.drop else np.flatnonzero(mask)[:1]:
                row = block.rows[int(survey.at[number])]
                words = _OPPOSITE if kind == "conflicting_answer" and survey.turned[number] else _REPEATED[kind]
                entry = self._repeated(Source(file, row.line), kind, words, int(places[number]), row.raw)
                if kind in self.drop:
                    rejects.append(entry)
                else:
                    self._quote(entry)
            if kind in self.drop:
                left &= ~mask
        self.rejected_for.update(str(entry["reason"]) for entry in rejects)
        self._count(file, block, survey, left, Counter(str(entry["reason"]) for entry in rejects[survey.verdicts.rejected :]))
        for number in np.flatnonzero((found["conflicting_answer"] >= 0) & (survey.turned == 0) & left):
            first = self.repetitions.source(int(found["conflicting_answer"][number]))
            self.many_answers.add(int(survey.prompts[number]), first, Source(file, block.first_line + int(survey.lines[number])))
        self.lengths.add(survey.lengths[np.repeat(left, survey.parts)], survey.whole[left])
        self.weights.take(survey.weights[left & ~np.isnan(survey.weights)].tolist())
        for entry in rejects:
            self._quote(entry)
        return sorted(rejects, key=lambda entry: int(entry["line"])), left

    def _repeated(self, source: Source, kind: str, words: str, place: int, raw: bytes) -> Json:
        return Reject(source, kind, words.format(self.repetitions.source(place)), raw).as_json()

    def _count(self, file: str, block: BlockLike, survey: Survey, left: Mask, dropped: Counter[str]) -> None:
        """Count the rows of a block that are left, and quote some; `dropped`: how many are not, by their kind of repetition."""
        gone: set[int] = set()
        if dropped:
            assert self.survey is not None
            survey = survey.without(self.survey(Block(tuple([block.rows[at] for at in survey.at[~left].tolist()]))), dropped)
            gone = {block.first_line + line for line in survey.lines[~left].tolist()}
        self.verdicts.add(survey.verdicts)
        self.files.setdefault(file, Verdicts()).add(survey.verdicts)
        self.layouts.setdefault(file, Counter()).update(survey.layouts)
        self.scripts.update(survey.scripts)
        self.languages.update(survey.languages)
        self.longer.update(survey.longer)
        self.marked.update(survey.marked)
        for category, count in survey.categories.items():
            self.categories[category if category in self.categories or len(self.categories) < _MOST_CATEGORIES else OTHERS] += count
        for name in ("mended", "notes"):
            for entry in survey.entries(name, file, block.first_line):
                if entry["line"] not in gone:
                    self._quote(entry)

    def _quote(self, entry: Json) -> None:
        shown = self.examples.setdefault(str(entry["reason"]), [])
        if len(shown) < EXAMPLES:
            text = str(entry.get("raw", entry.get("raw_base64", "")))[:_SHOWN]
            shown.append({"file": entry["file"], "line": entry["line"], "detail": entry["detail"], "text": text})

    def as_json(self) -> Json:
        """Return the counts and lengths as `data check --json` gives them, without times and names."""
        layouts = sum(self.layouts.values(), Counter[str]())
        few = strays(dict(self.languages.most_common()))
        told = {f"language_{language}" for language in self.languages if language not in few}  # as expected: not quoted
        return {
            "rows": self.verdicts.rows,
            "kept": self.verdicts.kept,
            "mended": self.verdicts.mended,
            "rejected": self.verdicts.rejected,
            "by_reason": dict(self.verdicts.by_reason.most_common()),
            "learned": self.verdicts.taught.as_json(),
            "tokens": self.lengths.spread(),
            "duplicates": self.repeated["duplicate"],
            "near_duplicates": self.repeated["near_duplicate"],
            "conflicting_answers": self.repeated["conflicting_answer"],
            "in_held_out": self.repeated["in_held_out"],
            "same_as_held_out": self.same_as_held_out,
            "notes": dict(self.verdicts.noted.most_common()),
            "unused_fields": self.verdicts.unused.as_json(),
            "weights": self.weights.as_json(),
            "layouts": dict(layouts.most_common()),
            "scripts": dict(self.scripts.most_common()),
            "languages": dict(self.languages.most_common()),
            "stray_languages": few,
            "categories": dict(self.categories.most_common()),
            "longer_answers": {which: self.longer[which] for which in ("better", "worse", "same")} if self.longer else {},
            "marked": {mark: self.marked[mark] for mark in ("good", "bad")} if self.marked else {},
            "mixed_files": [file for file, found in self.layouts.items() if len(found) > 1],
            "histogram": self.lengths.histogram(),
            "outlook": self.lengths.outlook(),
            "examples": {reason: shown for reason, shown in self.examples.items() if reason not in told},
        }
