"""By what rules rows are read, checked and cut; the same for `train` and for `data check`. Holds them; applies none."""

from __future__ import annotations

import difflib
import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from holdfast.base.errors import USAGE, Stop
from holdfast.book import cards_of
from holdfast.book.kinds.data_check import DataCheck
from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES, Wanted
from holdfast.data.judge.names import KNOWN_NAMES, MARKS, in_our_case

NO_LIMIT = sys.maxsize
Learns = Literal["assistant", "last", "all"]
WANTED: dict[str, Wanted] = {kind.name: kind.rows for kind in OBJECTIVES.values() if kind.rows != "answers"}
_VERSION = 23  # of everything that turns a row into tokens, or is told of it: reader, formats, template, cut


@dataclass(frozen=True)
class Rules:
    """`fields`: names of ours with those the files use. `too_long`: what becomes of a row of more than `max_tokens`.

    `redact`: whether secrets and addresses are taken out of the texts. `languages`: whether the language of each row is looked for.
    `wanted`: answers that are all good, pairs of a better and a worse one, or marked ones.
    `learns`: every answer, the last one, or all tokens. `weight`: the field that says how much a row counts; empty: all count alike.
    """

    layout: str = "auto"
    max_tokens: int = NO_LIMIT
    fields: tuple[tuple[str, str], ...] = ()
    too_long: Literal["cut", "reject", "split"] = "cut"
    redact: bool = False
    languages: bool = False
    wanted: Wanted = "answers"
    learns: Learns = "assistant"
    weight: str = ""

    @property
    def beside(self) -> frozenset[str]:
        """Fields that are used beside the texts of a row, in lower case."""
        marks = MARKS if self.wanted == "marks" else ()
        return frozenset((*marks, *([in_our_case(self.weight)] if self.weight else [])))

    def changes(self, card: DataCheck) -> bool:
        """True if rows in which this check finds something are rejected or mended, and not only noted."""
        return card.verdict != "note" or (self.redact and card.mend is not None)


def learns_of(wanted: Wanted, asked: Learns = "assistant") -> Learns:
    """Return the part of a row that is learned: of answers that are held against each other the last one."""
    return asked if wanted == "answers" else "last"


def rules_of(config: Config, limit: int) -> Rules:
    """Return the rules of a run, whose rows may have `limit` tokens."""
    data, train = config.data, config.train
    fields = named(data.fields.items(), "data.fields")
    wanted = train.objective_kind.rows
    learns = learns_of(wanted, data.train_on)
    too_long = "cut" if wanted != "answers" and data.too_long == "split" else data.too_long
    return Rules(data.format, limit, fields, too_long, data.redact, wanted=wanted, learns=learns, weight=data.row_weight or "")


def asked_fields(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Parse NAME=THEIRS of a command line: names of ours with those the files use. Raises Stop(2)."""
    fields = [one.partition("=") for one in given]
    if wrong := ["".join(field) for field in fields if not all(field)]:
        raise Stop(USAGE, f"--field {wrong[0]}: write NAME=THEIRS", "for example: --field instruction=question --field output=reply")
    if twice := [ours for ours, count in Counter(ours for ours, _, _ in fields).items() if count > 1]:
        raise Stop(USAGE, f"--field: {twice[0]} is given twice", "give each field of ours one name of theirs")
    return named(((ours, theirs) for ours, _, theirs in fields), "--field")


def named(fields: Iterable[tuple[str, str]], key: str) -> tuple[tuple[str, str], ...]:
    """Return names of ours with those the files use, as `key` gives them. Raises Stop(2) where the first is none of ours."""
    pairs = tuple(fields)
    wrong = next(((ours, theirs) for ours, theirs in pairs if ours not in KNOWN_NAMES), None)
    if wrong:
        ours, theirs = wrong
        near = difflib.get_close_matches(ours.lower(), KNOWN_NAMES, 1, 0.7)
        known = f"{f'did you mean {near[0]}? ' if near else ''}one of {', '.join(sorted(KNOWN_NAMES))}"
        hint = f"ours comes first: {theirs}, then {ours}" if theirs in KNOWN_NAMES else known
        raise Stop(USAGE, f"{key}: {ours} is no field that rows are read from", hint)
    return pairs


@functools.cache
def checks() -> tuple[DataCheck, ...]:
    """Return all data checks: those that mend first, so that the others see what is left."""
    order = ("mend", "reject", "note")
    return tuple(sorted(cards_of("checks_data").values(), key=lambda card: order.index(card.verdict)))


@functools.cache
def rules_version() -> str:
    """Hash how rows are read and the data checks as they stand: rows judged otherwise have to be judged again."""
    digest = hashlib.sha256(b"%d" % _VERSION)
    for file in sorted(files("holdfast.book.checks_data").iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".py"):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
