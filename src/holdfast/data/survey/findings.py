"""What a pass over whole files finds: counts, lengths, repetitions, examples. Takes surveys in the order of the rows; reads no file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.files import Json
from holdfast.data.duplicates.seen import Mask, Seen
from holdfast.data.duplicates.similar import Near
from holdfast.data.files.raw_row import Reject, Source
from holdfast.data.survey.languages import strays
from holdfast.data.survey.lengths import Lengths
from holdfast.data.survey.survey import Survey
from holdfast.data.tokens.shard import BlockLike, Verdicts

EXAMPLES = 5  # rows quoted for one reason
_SHOWN = 300
_MOST_CATEGORIES = 500  # more are no categories, but take memory
OTHERS = "(others)"


@dataclass
class Repetitions:
    """Which rows stood before, in this set or in the one held out."""

    pairs: Seen = field(default_factory=Seen)
    prompts: Seen = field(default_factory=Seen)
    near: Near = field(default_factory=Near)
    held_out: Seen = field(default_factory=Seen)

    def hold_out(self, survey: Survey) -> None:
        self.held_out.add(survey.pairs)
        self.held_out.add(survey.prompts[survey.prompts != 0])

    def take(self, survey: Survey) -> dict[str, Mask]:
        """By kind, which of the survey's rows repeat something."""
        exact = self.pairs.add(survey.pairs)
        asked = survey.prompts != 0
        conflicting = np.zeros(len(exact), np.bool_)
        conflicting[asked] = self.prompts.add(survey.prompts[asked]) & ~exact[asked]
        comparable = survey.comparable.astype(np.bool_)
        near = np.zeros(len(exact), np.bool_)
        near[comparable] = self.near.add(survey.signatures[comparable])
        overlap = self.held_out.of(survey.pairs) | (self.held_out.of(survey.prompts) & asked)
        return {"duplicate": exact, "near_duplicate": near & ~exact, "conflicting_answer": conflicting, "in_held_out": overlap}


_REPEATED = {
    "duplicate": "the same row stood before, but for case and spaces",
    "near_duplicate": "a row that is about 80 % the same stood before",
    "conflicting_answer": "the same prompt stood before with another answer",
    "in_held_out": "the row, or its prompt, is among the held-out rows",
}


@dataclass
class Findings:
    """Of all rows so far. `drop`: kinds of repetition that are rejected instead of counted alone."""

    drop: frozenset[str] = frozenset()
    verdicts: Verdicts = field(default_factory=Verdicts)
    layouts: dict[str, Counter[str]] = field(default_factory=dict)
    scripts: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    longer: Counter[str] = field(default_factory=Counter)
    lengths: Lengths = field(default_factory=Lengths)
    repetitions: Repetitions = field(default_factory=Repetitions)
    repeated: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[Json]] = field(default_factory=dict)

    def take(self, file: str, block: BlockLike, survey: Survey) -> tuple[list[Json], Mask]:
        """Count a block; its rejects in the order of the lines, and which of the survey's rows are left."""
        self.verdicts.add(survey.verdicts)
        self.layouts.setdefault(file, Counter()).update(survey.layouts)
        self.scripts.update(survey.scripts)
        self.languages.update(survey.languages)
        self.longer.update(survey.longer)
        for category, count in survey.categories.items():
            self.categories[category if category in self.categories or len(self.categories) < _MOST_CATEGORIES else OTHERS] += count
        for name in ("mended", "notes"):
            for entry in survey.entries(name, file, block.first_line):
                self._quote(entry)
        found = self.repetitions.take(survey)
        left = np.ones(len(survey.at), np.bool_)
        rejects = [*survey.entries("rejects", file, block.first_line)]
        for kind, mask in found.items():
            self.repeated[kind] += int(mask.sum())
            for number in np.flatnonzero(mask & left) if kind in self.drop else np.flatnonzero(mask)[:1]:
                row = block.rows[int(survey.at[number])]
                entry = Reject(Source(file, row.line), kind, _REPEATED[kind], row.raw).as_json()
                if kind in self.drop:
                    rejects.append(entry)
                else:
                    self._quote(entry)
            if kind in self.drop:
                self._drop(kind, mask & left, survey, block)
                left &= ~mask
        self.lengths.add(survey.lengths[np.repeat(left, survey.parts)], survey.whole[left])
        for entry in rejects:
            self._quote(entry)
        return sorted(rejects, key=lambda entry: int(entry["line"])), left

    def _drop(self, kind: str, mask: Mask, survey: Survey, block: BlockLike) -> None:
        """Make rejects of rows that were counted as kept or mended."""
        count = int(mask.sum())
        changed: dict[int, list[str]] = {}
        for entry in survey.entries("mended", "", 0):
            changed.setdefault(int(entry["line"]), []).append(str(entry["reason"]))
        lost = [changed[line] for number in np.flatnonzero(mask) if (line := int(survey.lines[number])) in changed]
        self.verdicts.mended -= len(lost)
        self.verdicts.kept -= count - len(lost)
        self.verdicts.by_reason.subtract(reason for reasons in lost for reason in reasons)
        self.verdicts.rejected += count
        self.verdicts.by_reason[kind] += count

    def _quote(self, entry: Json) -> None:
        shown = self.examples.setdefault(str(entry["reason"]), [])
        if len(shown) < EXAMPLES:
            text = str(entry.get("raw", entry.get("raw_base64", "")))[:_SHOWN]
            shown.append({"file": entry["file"], "line": entry["line"], "detail": entry["detail"], "text": text})

    def as_json(self) -> Json:
        """The counts and lengths as `data check --json` gives them, without times and names."""
        counted = {reason: count for reason, count in self.verdicts.by_reason.most_common() if count > 0}
        layouts = sum(self.layouts.values(), Counter[str]())
        few = strays(dict(self.languages.most_common()))
        told = {f"language_{language}" for language in self.languages if language not in few}  # as expected: not quoted
        return {
            "rows": self.verdicts.rows,
            "kept": self.verdicts.kept,
            "mended": self.verdicts.mended,
            "rejected": self.verdicts.rejected,
            "by_reason": counted,
            "learned": self.verdicts.taught.as_json(),
            "tokens": self.lengths.spread(),
            "duplicates": self.repeated["duplicate"],
            "near_duplicates": self.repeated["near_duplicate"],
            "conflicting_answers": self.repeated["conflicting_answer"],
            "in_held_out": self.repeated["in_held_out"],
            "notes": dict(self.verdicts.noted.most_common()),
            "unused_fields": self.verdicts.unused.as_json(),
            "weights": self.verdicts.weights.as_json(),
            "layouts": dict(layouts.most_common()),
            "scripts": dict(self.scripts.most_common()),
            "languages": dict(self.languages.most_common()),
            "stray_languages": few,
            "categories": dict(self.categories.most_common()),
            "longer_answers": {which: self.longer[which] for which in ("better", "worse", "same")} if self.longer else {},
            "mixed_files": [file for file, found in self.layouts.items() if len(found) > 1],
            "histogram": self.lengths.histogram(),
            "outlook": self.lengths.outlook(),
            "examples": {reason: shown for reason, shown in self.examples.items() if reason not in told},
        }
