"""Check every row of a run's data in one pass and tokenise those that can be trained on. Decides nothing about the run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from holdfast.core.config import Config
from holdfast.core.files import Json
from holdfast.rows.formats import BadRow, parse_example
from holdfast.rows.read import RawRow, Reject, read_rows
from holdfast.rows.template import Piece, pieces
from holdfast.rows.tokens import Codec, Tokens
from holdfast.rows.tokenset import TokenSet

_CHUNK = 1000


@dataclass
class Tally:
    """What was found: rows = kept + mended + rejected."""

    kept: int = 0
    mended: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    rejects: list[Reject] = field(default_factory=list)
    seconds: float = 0.0


def check_rows(config: Config, codec: Codec, max_tokens: int) -> tuple[TokenSet, Tally]:
    """Read, check and tokenise all files of `config.data`; rows longer than `max_tokens` lose the end of their answer (mended)."""
    began = time.perf_counter()
    tally = Tally()
    ids: list[npt.NDArray[np.int32]] = []
    learned: list[npt.NDArray[np.uint8]] = []
    lengths, files, lines = [0], [], []
    sources = (*config.data.files, *config.data.held_out_files)
    for number, file in enumerate(sources):
        rows = _examples(file, config.data.format, codec, tally)
        while chunk := list(islice(rows, _CHUNK)):
            for (row, _), tokens in zip(chunk, codec.encode([text for _, text in chunk], max_tokens), strict=True):
                if isinstance(tokens, BadRow):
                    _reject(tally, Reject(row.source, tokens.reason, tokens.detail, row.raw))
                    continue
                _count(tally, tokens)
                ids.append(np.asarray(tokens.ids, np.int32))
                learned.append(np.asarray(tokens.learned, np.uint8))
                lengths.append(len(tokens.ids))
                files.append(number)
                lines.append(row.source.line)
    tally.seconds = time.perf_counter() - began
    order = {file: number for number, file in enumerate(sources)}
    tally.rejects.sort(key=lambda reject: (order[reject.source.file], reject.source.line))
    return (
        TokenSet(
            np.concatenate(ids) if ids else np.zeros(0, np.int32),
            np.concatenate(learned) if learned else np.zeros(0, np.uint8),
            np.cumsum(lengths, dtype=np.int64),
            np.asarray(files, np.int32),
            np.asarray(lines, np.int64),
            sources,
            len(config.data.held_out_files),
            codec.pad,
        ),
        tally,
    )


def _examples(file: str, layout: str, codec: Codec, tally: Tally) -> Iterator[tuple[RawRow, list[Piece]]]:
    for row in read_rows(file):
        if isinstance(row, Reject):
            _reject(tally, row)
            continue
        try:
            yield row, pieces(parse_example(row.value, layout), codec.template)
        except BadRow as bad:
            _reject(tally, Reject(row.source, bad.reason, bad.detail, row.raw))


def _reject(tally: Tally, reject: Reject) -> None:
    tally.rejects.append(reject)
    tally.by_reason[reject.reason] += 1


def _count(tally: Tally, tokens: Tokens) -> None:
    if tokens.cut:
        tally.mended += 1
        tally.by_reason["answer_cut"] += 1
    else:
        tally.kept += 1


def report(tally: Tally, tokens: TokenSet) -> Json:
    """The data part of the summary: counts by verdict and reason, token lengths of the rows that are trained on."""
    lengths = np.diff(tokens.starts)
    spread = dict(zip(("min", "p50", "p90", "p99", "max"), map(int, np.percentile(lengths, [0, 50, 90, 99, 100])), strict=True))
    counts, edges = np.histogram(lengths, bins=min(40, int(lengths.max()))) if len(lengths) else (np.zeros(0), np.zeros(0))
    return {
        "rows": tally.kept + tally.mended + len(tally.rejects),
        "kept": tally.kept,
        "mended": tally.mended,
        "rejected": len(tally.rejects),
        "by_reason": dict(tally.by_reason),
        "tokens": {"total": int(lengths.sum()), "learned": int(tokens.learned.sum()), **spread},
        "histogram": {"counts": counts.tolist(), "edges": [round(float(edge), 2) for edge in edges]},
        "seconds": round(tally.seconds, 3),
    }
