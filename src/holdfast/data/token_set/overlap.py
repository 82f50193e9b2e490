"""What of the held-out rows stands in training, too: word for word, or with the same prompt. Looks at token numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.config.config import Data
from holdfast.data.duplicates.linked import Numbers
from holdfast.data.token_set.token_set import TokenSet, split
from holdfast.run.sampling.shuffle import Rows
from holdfast.run.sampling.step_table import split_rows

_AT_ONCE = 1 << 16  # tokens: more go beyond the caches of the processor
_LEAST = 2  # tokens of a prompt: one is the mark that every text begins with
_SEEDS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_GROUPED_BY = {"conversation": "conversation", "prompt": "prompt", "near_duplicate": "near-duplicate"}


class Keys(NamedTuple):
    """Hashes of the tokens of each row, int64 [rows] each: of all; of those before the first that is learned, 0 without any."""

    whole: Numbers
    prompt: Numbers


NONE = Keys(np.zeros(0, np.int64), np.zeros(0, np.int64))


def joined(parts: Iterable[Keys]) -> Keys:
    """Return the keys of rows of several sets as one."""
    return Keys(*map(np.concatenate, zip(NONE, *parts, strict=True)))


def keys_of(ids: npt.NDArray[np.int32], learned: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> Keys:
    """Return the keys of rows that stand as in a TokenSet; none of them is empty."""
    found = [np.zeros((2, 0), np.int64)]
    first, rows = 0, len(starts) - 1
    while first < rows:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + _AT_ONCE, "right")) - 1)
        span, begins = slice(int(starts[first]), int(starts[last])), (starts[first:last] - starts[first]).astype(np.int64)
        lengths = np.diff(starts[first : last + 1])
        place = np.arange(span.stop - span.start) - np.repeat(begins, lengths)
        each = mixed(ids[span].astype(np.uint64) * _SEEDS[0] + place.astype(np.uint64) * _SEEDS[1])
        given = np.minimum.reduceat(np.where(learned[span] != 0, place, np.repeat(lengths, lengths)), begins)
        whole = np.add.reduceat(each, begins)
        prompt = np.add.reduceat(np.where(place < np.repeat(given, lengths), each, np.uint64(0)), begins)
        prompt[given < _LEAST] = 0
        found.append(np.stack([whole, prompt]).view(np.int64))
        first = last
    return Keys(*np.concatenate(found, axis=1))


def mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return numbers whose bits hang on all bits of each: sums of them are hashes."""
    numbers = (numbers ^ (numbers >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return numbers ^ (numbers >> np.uint64(29))


class Overlap(NamedTuple):
    """Of `rows` rows: how many stand among others word for word, and how many have the prompt of one of those or hang together with one,
    them included."""

    rows: int
    same: int
    same_prompt: int

    def as_json(self) -> Json:
        """Return the counts under their names."""
        return self._asdict()


def begun_among(ids: npt.NDArray[np.int32], starts: npt.NDArray[np.int64], most: int, others: Keys) -> npt.NDArray[np.bool_]:
    """Return which rows of more than `most` tokens begin with one of the others, [rows]: that is what is learned of them, cut or split."""
    found = np.zeros(len(starts) - 1, np.bool_)
    place = np.arange(most).astype(np.uint64) * _SEEDS[1]
    for row in np.flatnonzero(np.diff(starts) > most):
        begin = ids[starts[row] : starts[row] + most].astype(np.uint64)
        found[row] = np.isin(np.cumsum(mixed(begin * _SEEDS[0] + place)).view(np.int64), others.whole).any()
    return found


def overlap_of(rows: Keys, others: Keys, kin: npt.NDArray[np.bool_] | None = None, begun: npt.NDArray[np.bool_] | None = None) -> Overlap:
    """Return how many of the rows stand among the others. kin: of which rows is known that they hang together with one of those, [rows];
    begun: which begin with one of those that was cut, [rows]."""
    same = np.isin(rows.whole, others.whole) | (False if begun is None else begun)
    prompt = np.isin(rows.prompt, others.prompt) & (rows.prompt != 0)
    return Overlap(len(same), int(same.sum()), int((same | prompt | (False if kin is None else kin)).sum()))


def overlap_in(tokens: TokenSet, training: Rows, held_out: Rows, before: Keys = NONE, keys: Keys | None = None) -> Overlap:
    """Return how many held-out rows of a token set stand in its training rows, or in those that were learned before.

    keys: of all rows of the set, where they are there already.
    """
    keys = keys or keys_of(tokens.ids, tokens.learned, tokens.starts)
    kin = None
    if tokens.group is not None:  # by text, so other spaces, case and layouts count as well
        trained = np.zeros(len(tokens), bool)
        trained[tokens.group[training]] = True
        kin = trained[tokens.group[held_out]]
    ours, theirs = (Keys(keys.whole[rows], keys.prompt[rows]) for rows in (held_out, training))
    return overlap_of(ours, joined([theirs, before]), kin)


def held_out_facts(tokens: TokenSet, data: Data, seed: int, before: Keys = NONE, unknown: str = "") -> Json:
    """Return `held_out` of a data report: what was looked at to draw the rows, how many changed sides for it, and the overlap.

    before: keys of the rows that the adapter has learned which the run begins with; unknown: an adapter whose rows could not be compared.
    """
    training, held_out = split(tokens, data, seed)
    facts: Json = {"grouped_by": list(tokens.grouped_by or ()), "grouped": 0, "moved": 0}
    if tokens.group is not None:
        sizes = np.bincount(tokens.group, minlength=len(tokens))
        facts["grouped"] = int(sizes[sizes > 1].sum())
        if not tokens.held_out_files:
            facts["moved"] = len(np.setxor1d(held_out, split_rows(len(tokens), data.held_out, seed)[1]))
    keys = keys_of(tokens.ids, tokens.learned, tokens.starts)
    if len(before.whole):
        facts["before"] = int(np.isin(keys.whole[held_out], before.whole).sum())
    if unknown:
        facts["not_looked_at"] = unknown
    return overlap_in(tokens, training, held_out, before, keys).as_json() | facts


def told_of_held_out(facts: Json, by_file: bool) -> list[str]:
    """Return what a person is told of the rows that judge; a line begins with "! " where they stand in training."""
    rows, lines = facts["rows"], []
    if not rows:
        return ["no row is held out: nothing will say whether the result is better than the base (data.held_out, data.held_out_files)"]
    if facts["moved"]:
        by = ", ".join(_GROUPED_BY[kind] for kind in facts["grouped_by"])
        text = f"{facts['grouped']:,} rows hang together by {by}; held out by whole groups: {facts['moved']:,} rows changed sides"
        lines.append(text)
    if facts["same"] or facts["same_prompt"]:
        told = f"! of {rows:,} held-out rows {facts['same']:,} stand in training word for word"
        told += f", {facts['same_prompt']:,} with their prompt or much alike"
        if before := facts.get("before"):
            told += f", {before:,} of them in the training of the adapter that it begins with"
        lines.append(f"{told}; what they show is partly memory" + ("" if by_file or before else ": most rows hang together"))
    if unknown := facts.get("not_looked_at"):
        why = "its rows are not here, or were written by another chat template"
        lines.append(f"whether the held-out rows were learned by {unknown}, which it begins with, is not known: {why}")
    return lines
