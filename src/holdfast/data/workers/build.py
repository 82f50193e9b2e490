"""Check every row of a run's data in one pass and tokenise those that can be trained on. Decides nothing about the run.

Memory is that of a few blocks, whatever the number of rows: tokens go to shards, rejects to their file, both as they come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base.wait import doing
from holdfast.config.config import Config
from holdfast.data.files.raw_row import json_line
from holdfast.data.token_set.token_set import ShardPart, TokenSet
from holdfast.data.tokens.cache import TokenCache
from holdfast.data.tokens.shard import Block, Shard, Verdicts, blocks, read_shard
from holdfast.data.workers.workers import Work, Workers


@dataclass
class BuildResult:
    """What one pass over the data found: the shards of all blocks in order, the verdicts, the first reject of each, its own work."""

    parts: list[ShardPart] = field(default_factory=list)
    verdicts: Verdicts = field(default_factory=Verdicts)
    first_rejected: dict[str, Json] = field(default_factory=dict)
    first_noted: dict[str, Json] = field(default_factory=dict)  # of each note: file and line of its first row
    reused: int = 0
    seconds: float = 0.0


def check_rows(config: Config, cache: TokenCache, workers: Workers, rejects: BinaryIO) -> BuildResult:
    """Read, check and tokenise all files of `config.data` in order, as far as the cache has not got them; rejects are written out."""
    began = time.perf_counter()
    checked = BuildResult()
    for number, file in enumerate((*config.data.files, *config.data.held_out_files)):
        before = checked.verdicts.rows
        with doing(f"reading and checking the rows of {file}") as note:
            for path, shard, block, found in _shards(file, cache, workers):
                checked.parts.append(ShardPart(path, number, block.first_line, len(shard.lengths), len(shard.ids)))
                checked.verdicts.add(shard.verdicts)
                for reason, line in shard.verdicts.first.items():
                    checked.first_noted.setdefault(reason, {"file": file, "line": block.first_line + line})
                checked.reused += found
                for reject in shard.rejected(file, block.first_line):
                    rejects.write(json_line(reject))
                    checked.first_rejected.setdefault(reject["reason"], reject)
                note[0] = f"reading and checking the rows of {file}, {checked.verdicts.rows - before:,} so far"
        if checked.verdicts.rows == before:
            size = Path(file).stat().st_size
            raise Stop(
                BLOCKED, f"{file} {f'holds no row ({size:,} bytes)' if size else 'is empty (0 bytes)'}", "give a file with rows in it"
            )
    checked.seconds = time.perf_counter() - began
    return checked


def _shards(file: str, cache: TokenCache, workers: Workers) -> Iterator[tuple[Path, Shard, Block, bool]]:
    """Yield the shard of each block of `file` in order, its path, the block, and whether it was there already; some are begun ahead."""
    ahead: deque[tuple[Block, str, tuple[Path, Shard] | Work]] = deque()
    for block in blocks(file):
        name = block.name
        ahead.append((block, name, cache.find(name) or workers.begin(block)))
        if len(ahead) > 2 * workers.count:
            yield _next(ahead, cache)
    while ahead:
        yield _next(ahead, cache)


def _next(ahead: deque[tuple[Block, str, tuple[Path, Shard] | Work]], cache: TokenCache) -> tuple[Path, Shard, Block, bool]:
    block, name, work = ahead.popleft()
    if isinstance(work, tuple):
        return *work, block, True
    data = work.result()
    return cache.keep(name, data), read_shard(data), block, False


def report(checked: BuildResult, tokens: TokenSet) -> Json:
    """Return the data part of the summary: counts by verdict and reason, token lengths of the rows that are trained on."""
    found = checked.verdicts
    lengths = np.diff(tokens.starts)
    spread = dict(zip(("min", "p50", "p90", "p99", "max"), map(int, np.percentile(lengths, [0, 50, 90, 99, 100])), strict=True))
    counts, edges = np.histogram(lengths, bins=min(40, int(lengths.max()))) if len(lengths) else (np.zeros(0), np.zeros(0))
    return {
        "rows": found.rows,
        "kept": found.kept,
        "mended": found.mended,
        "rejected": found.rejected,
        "by_reason": dict(found.by_reason),
        "learned": found.taught.as_json(),
        "notes": dict(found.noted.most_common()),
        "first_noted": checked.first_noted,
        "first_rejected": {reason: {"file": at["file"], "line": at["line"]} for reason, at in checked.first_rejected.items()},
        "unused_fields": found.unused.as_json(),
        "weights": found.weights.as_json(),
        "tokens": {"total": int(lengths.sum()), "learned": found.learned, **spread},
        "histogram": {"counts": counts.tolist(), "edges": [round(float(edge), 2) for edge in edges]},
        "seconds": round(checked.seconds, 3),
    }
