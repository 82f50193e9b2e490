"""The tokenised rows of a run in one safetensors file, mapped rather than loaded. Written by the data check, read by the trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.base.files import replacing
from holdfast.config.config import Data
from holdfast.config.train import Train
from holdfast.data.files.raw_row import Source
from holdfast.data.token_set.arrays import header_of, in_file_order, map_arrays, read_array
from holdfast.data.token_set.kin import Groups, Kin, groups_of
from holdfast.data.token_set.worse import WORSE
from holdfast.run.sampling.mixture import Mixture, make_mixture
from holdfast.run.sampling.shuffle import Rows
from holdfast.run.sampling.step_table import StepTable, split_groups, split_rows


@dataclass(frozen=True)
class TokenSet:
    """Rows one after the other: row i is ids[starts[i]:starts[i+1]]; `learned` is 1 where a token is a target.

    learned: of a pair, whose worse answer stands behind the better one with WORSE added, and of an answer marked bad, 2 or 3.
    ids int32 [tokens], learned uint8 [tokens], starts int64 [rows + 1], file int32 [rows], line int64 [rows].
    """

    ids: npt.NDArray[np.int32]
    learned: npt.NDArray[np.uint8]
    starts: npt.NDArray[np.int64]
    file: npt.NDArray[np.int32]
    line: npt.NDArray[np.int64]
    files: tuple[str, ...]
    held_out_files: int  # how many of the last files hold rows for evaluation
    pad: int
    weight: npt.NDArray[np.float32] | None = None  # [rows]: how much each counts; None: all alike
    group: npt.NDArray[np.int64] | None = None  # [rows]: the first row that each hangs together with; None: each stands alone
    share: npt.NDArray[np.float32] | None = None  # [tokens]: how much each counts as a target; None: all learned ones whole
    grouped_by: tuple[str, ...] | None = None  # what was looked at for that; None: nothing, as before rows were grouped

    def __len__(self) -> int:
        return len(self.starts) - 1

    def weights_of(self, rows: list[int]) -> npt.NDArray[np.float32]:
        """Return the weights of these rows, float32 [rows]."""
        return np.ones(len(rows), np.float32) if self.weight is None else self.weight[rows]

    def counts_of(self, number: int) -> npt.NDArray[np.float32] | None:
        """Return how much each token of a row counts as a target, float32 [its tokens]; None where all of the set count alike."""
        if self.share is None and self.weight is None:
            return None
        share = 1 if self.share is None else self.share[int(self.starts[number]) : int(self.starts[number + 1])]
        return np.full(self.length(number), 1 if self.weight is None else self.weight[number], np.float32) * np.float32(share)

    def row(self, number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        span = slice(int(self.starts[number]), int(self.starts[number + 1]))
        return self.ids[span], self.learned[span]

    def length(self, number: int) -> int:
        return int(self.starts[number + 1] - self.starts[number])

    def source(self, number: int) -> Source:
        return Source(self.files[int(self.file[number])], int(self.line[number]))


Sequence = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]


def sequences(ids: npt.NDArray[np.int32], learned: npt.NDArray[np.uint8]) -> list[tuple[Sequence, bool]]:
    """Return the one or two sequences of a row, each as (ids, learned), and whether it is a good one: a pair has its better one first."""
    better = int(np.searchsorted(learned >= WORSE, True))
    parts = ((slice(0, better), True), (slice(better, len(ids)), False))
    return [((ids[span], learned[span] & np.uint8(1)), good) for span, good in parts if span.start < span.stop]


class ShardPart(NamedTuple):
    """A shard of the token set: its file, the number of the data file it is of, that file's line it begins with, its size."""

    shard: Path
    file: int
    first_line: int
    rows: int
    tokens: int


_TYPES = {"ids": "<i4", "learned": "u1", "starts": "<i8", "file": "<i4", "line": "<i8", "weight": "<f4", "share": "<f4", "group": "<i8"}
_KINDS = {name: np.dtype(kind) for name, kind in _TYPES.items()}


def join_parts(path: Path, parts: list[ShardPart], data: Data, pad: int, grouped: bool = True) -> str:
    """Write the token set in `path`, whole or not at all, from its shards; the SHA-256 of the file. Holds the tokens of one at a time.

    grouped: whether rows that hang together are looked for; runs that were begun without go on so.
    """
    rows, tokens = sum(part.rows for part in parts), sum(part.tokens for part in parts)
    sizes = {"ids": tokens, "learned": tokens, "starts": rows + 1, "file": rows, "line": rows} | (
        {"weight": rows} if data.row_weight else {}
    )
    if any(len(read_array(part.shard, "shares")) for part in parts):
        sizes["share"] = tokens
    facts: dict[str, Any] = {"files": (*data.files, *data.held_out_files), "held_out_files": len(data.held_out_files), "pad": pad}
    group = np.arange(rows)
    if grouped:
        group, facts["grouped_by"] = _groups(parts)
    if (group != np.arange(rows)).any():
        sizes["group"] = rows
    kinds = {name: _KINDS[name] for name in sizes}
    digest = hashlib.sha256()
    columns = ([group.tobytes()] if name == "group" else _column(name, parts) for name in in_file_order(kinds))
    with replacing(path) as handle:
        for stretch in chain([header_of(facts, kinds, sizes)], *columns):
            digest.update(stretch)
            handle.write(stretch)
    return digest.hexdigest()


def _groups(parts: list[ShardPart]) -> Groups:
    """Group the rows of all shards that hang together."""
    kin = Kin(*(np.concatenate([read_array(part.shard, name) for part in parts]) for name in Kin._fields))
    file, line = (np.frombuffer(b"".join(_column(name, parts)), _KINDS[name]) for name in ("file", "line"))
    return groups_of(kin, file, line)


def _column(name: str, parts: list[ShardPart]) -> Iterator[bytes]:
    """Yield the bytes of one array of the token set, shard by shard."""
    total = 0
    if name == "starts":
        yield np.zeros(1, _KINDS[name]).tobytes()
    for part in parts:
        if name in ("ids", "learned"):
            yield read_array(part.shard, name).tobytes()
        elif name == "weight":
            yield read_array(part.shard, "weights").tobytes()
        elif name == "share":
            shares = read_array(part.shard, "shares")
            yield (shares if len(shares) else np.ones(part.tokens, _KINDS[name])).tobytes()
        elif name == "file":
            yield np.full(part.rows, part.file, _KINDS[name]).tobytes()
        elif name == "line":
            yield (read_array(part.shard, "lines").astype(_KINDS[name]) + part.first_line).tobytes()
        else:
            ends = total + np.cumsum(read_array(part.shard, "lengths"), dtype=_KINDS[name])
            total += part.tokens
            yield ends.tobytes()


def load_tokens(path: Path) -> TokenSet:
    """Map a saved token set. Raises FileNotFoundError, or ValueError when the file is damaged."""
    facts, arrays = map_arrays(path)
    by = tuple(facts["grouped_by"]) if "grouped_by" in facts else None
    return TokenSet(**arrays, files=tuple(facts["files"]), held_out_files=facts["held_out_files"], pad=facts["pad"], grouped_by=by)


def split(tokens: TokenSet, data: Data, seed: int) -> tuple[Rows, Rows]:
    """Return (training, evaluation) rows: by file where the config names files for evaluation, else a share drawn by seed, of rows that
    hang together all or none."""
    if not tokens.held_out_files and tokens.group is not None:
        return split_groups(tokens.group, data.held_out, seed)
    if not tokens.held_out_files:
        training, held_out = split_rows(len(tokens), data.held_out, seed)
        return _parts_together(tokens, training, held_out) if data.too_long == "split" else (training, held_out)
    first = len(tokens.files) - tokens.held_out_files
    return np.flatnonzero(tokens.file < first), np.flatnonzero(tokens.file >= first)


def _parts_together(tokens: TokenSet, training: Rows, held_out: Rows) -> tuple[Rows, Rows]:
    """Put all parts of a row that was split on one side: that of evaluation, unless no row were left to train on."""
    follows = (tokens.file[1:] == tokens.file[:-1]) & (tokens.line[1:] == tokens.line[:-1])
    row = np.concatenate([[0], np.cumsum(~follows)])
    with_held_out = np.isin(row, row[held_out])
    return (training, held_out) if with_held_out.all() else (np.flatnonzero(~with_held_out), np.flatnonzero(with_held_out))


def mixture(tokens: TokenSet, training: Rows, data: Data, seed: int) -> Mixture | None:
    """Return how epochs are drawn from the training rows; None when each is simply all of them."""
    if data.rows_per_epoch is None and not data.weights:
        return None
    lengths = np.diff(tokens.starts)[training]
    weights = [data.weights.get(file, 1.0) for file in tokens.files]
    return make_mixture(tokens.file[training], lengths, weights, epoch_rows(data, len(training)), seed)


def step_table(tokens: TokenSet, training: Rows, data: Data, train: Train) -> StepTable:
    """Return the table of the training rows each step sees."""
    return StepTable(training, train.effective_batch, train.seed, mixture(tokens, training, data, train.seed))


def epoch_rows(data: Data, training: int) -> int:
    """Return the number of rows an epoch draws from `training` rows."""
    return training if data.rows_per_epoch is None else data.rows_per_epoch
