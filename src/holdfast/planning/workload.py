"""How much a run has to compute, judged by the first rows of its files, before they are checked. Reads a few mebibytes of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from holdfast.base.errors import Stop
from holdfast.base.file_errors import file_error
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.data.judge.rules import Rules, rules_of
from holdfast.data.templates.dropped import told_of_dropped
from holdfast.data.tokens.codec import Codec
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.shard import Block, blocks, tokenise
from holdfast.run.sampling.step_table import run_length

NO_ROW = "none of the first rows can be trained on"
_LOOKED_AT = 8  # blocks of a file, each about a mebibyte
_BY_SIZE = (".jsonl", ".ndjson")  # of which the rows beyond are judged by the file's size


@dataclass(frozen=True)
class Workload:
    """steps, samples: of the run; row: mean tokens of the rows it draws; held_out: rows; judged_row: mean tokens of those.

    longest: tokens of the longest row looked at; lost: what the chat template writes nothing of in these rows, in words.
    """

    steps: int
    samples: int
    row: float
    held_out: float
    judged_row: float
    longest: int
    lost: tuple[str, ...]

    @property
    def tokens(self) -> float:
        return self.samples * self.row

    def checked(self, config: Config) -> float:
        """Return the tokens of evaluations: those on the way, and of base and tuned model at the end."""
        return checked_tokens(config, self.steps, self.held_out, self.judged_row)


class _FileRows(NamedTuple):
    """Of a file: its rows that are trained on, their tokens, and the tokens of the longest row looked at. noted: of those, by reason."""

    rows: float
    tokens: float
    longest: int
    noted: Counter[str]


def checked_tokens(config: Config, steps: int, held_out: float, row: float) -> float:
    """Return the held-out tokens that go through the model: on the way, and for base and tuned model at the end."""
    evaluate = config.evaluate
    on_the_way = -(-steps // evaluate.every) * min(evaluate.rows or held_out, held_out) if evaluate.every else 0
    return (on_the_way + 2 * held_out) * row


def longest_row(config: Config, model: ModelFacts) -> int:
    """Return how many tokens a row may have: what the config says, or as many as the model has positions for, behind learned ones."""
    before = config.adapter.virtual_tokens if config.adapter.kind.prefix else 0
    return min(config.train.max_tokens, max(1, model.positions - before)) if model.positions else config.train.max_tokens


def workload(config: Config, model: ModelFacts, longest: int) -> Workload | str:
    """Return what a run has before it; a sentence where that cannot be told."""
    try:
        codec, rules = codec_of(config, model.folder), rules_of(config, longest)
        found = [_file(name, codec, rules) for name in config.data.files]
        apart = [_file(name, codec, rules) for name in config.data.held_out_files]
    except (OSError, Stop) as error:
        told = error if isinstance(error, Stop) else file_error(error)
        return f"its rows cannot be counted yet: {told.message if told else error}"
    rows = sum(file.rows for file in found)
    if rows < 1:
        return f"{NO_ROW}{_first_reason(config, codec, rules)}"
    held_out = sum(file.rows for file in apart) if apart else rows * config.data.held_out
    often = [config.data.weights.get(name, 1.0) for name in config.data.files]  # relative to a file's rows
    drawn = [file._replace(rows=times * file.rows, tokens=times * file.tokens) for times, file in zip(often, found, strict=True)]
    training = rows if apart else rows - held_out
    train = config.train
    steps, samples = run_length(config.data.rows_per_epoch or max(1, round(training)), train.effective_batch, train.epochs, train.steps)
    seen = max(file.longest for file in [*found, *apart])
    noted = sum((file.noted for file in [*found, *apart]), Counter[str]())
    lost = tuple(line.replace("! in ", "of the first rows, in ", 1) for line in told_of_dropped(noted))
    return Workload(steps, samples, _mean(drawn) or _mean(found), held_out, _mean(apart or found), seen, lost)


def _mean(files: Sequence[_FileRows]) -> float:
    """Return the mean tokens of a row of several files."""
    rows = sum(file.rows for file in files)
    return sum(file.tokens for file in files) / rows if rows else 0.0


def _file(name: str, codec: Codec, rules: Rules) -> _FileRows:
    """Count and measure the first blocks of a file. Raises OSError, Stop."""
    looked = iter(blocks(name))
    first = next(looked, None)
    if first is None:
        return _FileRows(0.0, 0.0, 0, Counter())
    shard = tokenise(first, rules, codec)
    rows = _rows(name, first, looked) * len(shard.lengths) / max(1, len(first.rows))
    if not len(shard.lengths):
        return _FileRows(rows, 0.0, 0, Counter())
    return _FileRows(rows, rows * float(shard.lengths.mean()), int(shard.lengths.max()), shard.verdicts.noted)


def _first_reason(config: Config, codec: Codec, rules: Rules) -> str:
    """Return where the first row stands that is rejected, and why; the files, where there is no row at all."""
    for name in config.data.files:
        for first in islice(blocks(name), 1):
            for reject in tokenise(first, rules, codec).rejected(name, first.first_line):
                return f" ({name}:{reject['line']}: {reject['detail']})"
    return f": no row is in {', '.join(config.data.files)}"


def _rows(name: str, first: Block, others: Iterator[Block]) -> float:
    """Return the number of rows of a file: counted, or of a long one estimated from its size."""
    seen = [first, *islice(others, _LOOKED_AT - 1)]
    count, size = sum(len(block.rows) for block in seen), sum(len(row.raw) + 1 for block in seen for row in block.rows)
    if (following := next(others, None)) is None:
        return count
    if name.endswith(_BY_SIZE):
        return count * Path(name).stat().st_size / size
    return count + len(following.rows) + sum(len(block.rows) for block in others)
