"""The rows a model is measured on: those a run held out, those of a file, or a small general set that ships with holdfast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.safe_open import naming
from holdfast.data.duplicates.linked import joined as joined_rows
from holdfast.data.duplicates.linked import links_of_equal
from holdfast.data.files.raw_row import Source
from holdfast.data.judge.rules import Rules
from holdfast.data.token_set.learned_rows import learned_before, learned_by
from holdfast.data.token_set.overlap import Keys, Overlap, keys_of, overlap_in, overlap_of
from holdfast.data.token_set.token_set import load_tokens, sequences, split
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.shard import blocks, tokenise
from holdfast.run.folder import RunFolder

GENERAL = "general.jsonl"  # beside this file


@dataclass(frozen=True)
class Samples:
    """Tokenised rows: row i is ids[starts[i]:starts[i+1]]; learned is 1 where a token is an answer's.

    ids int32, learned uint8 [tokens], starts int64 [rows + 1]; sources: where each row stood; kind: held_out, training, file, general.
    groups: of each row the first of its run that it hangs together with, [rows], by what grouped_by names; None: not looked at.
    overlap: with the rows its run was trained on, and those of the adapter that began with; None: not looked at. unknown: that adapter,
    where its rows are not here. overlap_against: with the rows of the model that is compared with.
    """

    ids: npt.NDArray[np.int32]
    learned: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    sources: tuple[Source, ...]
    kind: str
    groups: npt.NDArray[np.int64] | None = None
    grouped_by: tuple[str, ...] = ()
    overlap: Overlap | None = None
    unknown: str = ""
    overlap_against: Overlap | None = None

    @property
    def clusters(self) -> npt.NDArray[np.int64]:
        """Which rows belong together, int64 [rows]: those of one line of a file, of one prompt, of one group of their run."""
        rows = np.arange(len(self))
        line = np.unique([str(source) for source in self.sources], return_inverse=True)[1].astype(np.int64)
        prompt = keys_of(self.ids, self.learned, self.starts).prompt
        links = [links_of_equal(line, rows), links_of_equal(prompt, np.flatnonzero(prompt))]
        return joined_rows(len(self), links + ([links_of_equal(self.groups, rows)] if self.groups is not None else []))

    def overlap_with(self, learned: Keys) -> Overlap:
        """Return how many of these rows stand among rows that were learned."""
        return overlap_of(keys_of(self.ids, self.learned, self.starts), learned)

    def __len__(self) -> int:
        return len(self.sources)

    def row(self, number: int) -> tuple[list[int], list[int]]:
        """Return (token ids, whether each is learned) of a row."""
        span = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return self.ids[span].tolist(), self.learned[span].tolist()

    def save(self, file: Path) -> None:
        with naming(file):
            np.savez(file, ids=self.ids, learned=self.learned, starts=self.starts)

    def prompt_and_answer(self, number: int) -> tuple[list[int], list[int]]:
        """Return the tokens up to a row's first answer, and that answer; plain text is prompted with its first token."""
        ids, learned = self.row(number)
        first = max(1, learned.index(1) if 1 in learned else len(ids))
        end = first
        while end < len(ids) and learned[end]:
            end += 1
        return ids[:first], ids[first:end]

    def with_(self, other: Samples) -> Samples:
        """Return these rows, followed by the others."""
        starts = np.concatenate([self.starts, self.starts[-1] + other.starts[1:]])
        ids, learned = np.concatenate([self.ids, other.ids]), np.concatenate([self.learned, other.learned])
        return Samples(ids, learned, starts, (*self.sources, *other.sources), self.kind)

    def first(self, most: int) -> Samples:
        """Return the first `most` rows."""
        if len(self) <= most:
            return self
        end = int(self.starts[most])
        return Samples(self.ids[:end], self.learned[:end], self.starts[: most + 1], self.sources[:most], self.kind)


def joined(rows: list[tuple[list[int], list[int], Source]], kind: str) -> Samples:
    """Join rows of (token ids, learned, source) into one set."""
    ids = np.array([number for row, _, _ in rows for number in row], np.int32)
    learned = np.array([flag for _, flags, _ in rows for flag in flags], np.uint8)
    starts = np.cumsum([0, *(len(row) for row, _, _ in rows)], dtype=np.int64)
    return Samples(ids, learned, starts, tuple(source for _, _, source in rows), kind)


def of_run(run: RunFolder, most: int | None = None) -> Samples:
    """Return the rows a run held out, as it tokenised them, else rows it was trained on. Raises Stop(1) without its data."""
    config = run.config()
    try:
        tokens = load_tokens(run.data_file)
    except (OSError, ValueError) as error:
        text = f"{run.data_file}, the rows of this run, cannot be read: {error}"
        raise Stop(BLOCKED, text, "give rows with --rows FILE") from None
    training, held_out = split(tokens, config.data, config.train.seed)
    chosen, kind = (held_out, "held_out") if len(held_out) else (training, "training")
    found = []
    for number in chosen[:most].tolist():
        (ids, learned), _ = sequences(*tokens.row(number))[0]  # of a pair the better one
        found.append((ids.tolist(), learned.tolist(), tokens.source(number)))
    made = joined(found, kind)
    if tokens.grouped_by is not None:
        group = np.arange(len(tokens)) if tokens.group is None else tokens.group
        made = replace(made, groups=group[chosen[:most]], grouped_by=tokens.grouped_by)
    if kind != "held_out" or most is not None:
        return made
    before = learned_before(run)
    return replace(made, overlap=overlap_in(tokens, training, chosen, before.keys), unknown=before.unknown)


def against_run(samples: Samples, run: RunFolder) -> Samples:
    """Return the same rows with what of them the run has learned; unchanged where its rows cannot be read."""
    learned = learned_by(run)
    return replace(samples, overlap=samples.overlap_with(learned.keys), unknown=learned.unknown) if learned else samples


def of_file(file: Path, codec: Codec, most_tokens: int) -> Samples:
    """Read the rows of a data file by the same reader and checks as training. Raises Stop(2) where none can be used."""
    if not file.is_file():
        raise Stop(USAGE, f"--rows {file}: no such file", "give a file of rows as holdfast train takes them")
    rows, rejected = [*_tokenise(file, codec, most_tokens)], 0
    good = [row for row in rows if row is not None]
    rejected = len(rows) - len(good)
    if not good:
        text = f"{file} has no row that can be used ({rejected:,} rejected)"
        raise Stop(USAGE, text, f"why: holdfast data check {file}")
    return joined([row for row in good if row], "file")


def of_general(codec: Codec, most_tokens: int, lines: frozenset[int] | None = None) -> Samples:
    """Tokenise the small general set: what a model could do before, and should still. lines: those that count, None for all."""
    with as_file(files("holdfast.export") / GENERAL) as file:
        rows = [row for row in _tokenise(file, codec, most_tokens) if row and (lines is None or row[2].line in lines)]
        return joined(rows, "general")


def general_text() -> str:
    """Return the small general set as JSON Lines."""
    return (files("holdfast.export") / GENERAL).read_text(encoding="utf-8")


def _tokenise(file: Path, codec: Codec, most_tokens: int) -> Iterator[tuple[list[int], list[int], Source] | None]:
    """Yield each row's tokens and place; None for each that is rejected."""
    for block in blocks(str(file)):
        shard = tokenise(block, Rules(max_tokens=most_tokens), codec)
        at = 0
        for length, line in zip(shard.lengths.tolist(), shard.lines.tolist(), strict=True):
            source = Source(str(file), block.first_line + line)
            yield shard.ids[at : at + length].tolist(), shard.learned[at : at + length].tolist(), source
            at += length
        yield from [None] * shard.verdicts.rejected
