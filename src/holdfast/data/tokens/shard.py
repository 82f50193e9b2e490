"""A block of rows and what becomes of it, a shard: its tokens and its rejects in one file. Reads data files; writes nothing.

A shard follows from the bytes of its block and from what the block is tokenised with, so it can be kept under a name made of both.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from holdfast.base.files import Json
from holdfast.data.files.raw_row import Reject, UnparsedRow, json_line
from holdfast.data.files.read import read_unparsed
from holdfast.data.judge.judge import JudgedRow, judge
from holdfast.data.judge.notes import note
from holdfast.data.judge.row_weight import Weights
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Example
from holdfast.data.judge.unused import UnusedFields
from holdfast.data.templates.chat_template import compared_answer, learned_by, pair_written, worse_pieces, write_learned
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.token_set.arrays import Array, pack, unpack
from holdfast.data.token_set.kin import Kin, kin_of
from holdfast.data.token_set.worse import WORSE
from holdfast.data.tokens.codec import Codec, Tokens
from holdfast.data.tokens.taught import LearnedAnswers, notes_of
from holdfast.data.tokens.too_long import Changes, Parts, fitted

_VERSION = 4  # of a shard's form; what turns a row into tokens is part of the key of its cache
_BLOCK_ROWS, _BLOCK_BYTES = 1024, 1 << 20
_ARRAYS = ("ids", "learned", "lengths", "lines", "weights", "shares", "rejects", *Kin._fields)


class BlockLike(Protocol):
    """A block, wherever its rows lie."""

    @property
    def rows(self) -> tuple[UnparsedRow, ...]: ...
    @property
    def first_line(self) -> int: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class Block:
    """Rows that stand together in a file. `name`: a hash of their bytes and of their lines as counted from the first one."""

    rows: tuple[UnparsedRow, ...]

    @property
    def first_line(self) -> int:
        return self.rows[0].line

    @property
    def name(self) -> str:
        digest = hashlib.sha256()
        for row in self.rows:
            sizes = len(row.raw), -1 if row.json is None else len(row.json)
            digest.update(b"%d %d %d %r\n" % (row.line - self.first_line, *sizes, row.damage))
            digest.update(row.raw)
            digest.update(row.json or b"")
        return digest.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Reduce to numbers and bytes for pickle, where the rows are no more than that: named tuples take ten times as long."""
        if any(row.damage or row.json is not None for row in self.rows):
            return Block, (self.rows,)
        return _block_of, ([row.line for row in self.rows], [row.raw for row in self.rows])


def _block_of(lines: list[int], raws: list[bytes]) -> Block:
    return Block(tuple(map(UnparsedRow, lines, raws)))


def blocks(file: str) -> Iterator[Block]:
    """Yield the rows of `file` in blocks of about a mebibyte. Raises what read_unparsed raises."""
    rows: list[UnparsedRow] = []
    size = 0
    for row in read_unparsed(file):
        rows.append(row)
        size += len(row.raw)
        if len(rows) == _BLOCK_ROWS or size >= _BLOCK_BYTES:
            yield Block(tuple(rows))
            rows, size = [], 0
    if rows:
        yield Block(tuple(rows))


@dataclass
class Verdicts:
    """What was found: rows = kept + mended + rejected. `largest`: the highest token number, -1 without tokens.

    Of the rows that are trained on: how many each note was made of, fields that are not used, and the weights they have.
    """

    kept: int = 0
    mended: int = 0
    rejected: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    learned: int = 0
    largest: int = -1
    noted: Counter[str] = field(default_factory=Counter)
    unused: UnusedFields = field(default_factory=UnusedFields)
    weights: Weights = field(default_factory=Weights)
    taught: LearnedAnswers = field(default_factory=LearnedAnswers)
    first: dict[str, int] = field(default_factory=dict)  # of each note: the first row's line from the block's first

    @property
    def rows(self) -> int:
        return self.kept + self.mended + self.rejected

    def take(self, row: JudgedRow, changes: Changes) -> None:
        """Count a row that is trained on, with these changes made to fit it in."""
        if not row.mended and not changes:
            self.kept += 1
            return
        self.mended += 1
        self.by_reason.update(reason for reason, _ in (*row.mended, *changes))

    def reject(self, rejects: list[Reject]) -> None:
        self.rejected += len(rejects)
        self.by_reason.update(reject.reason for reject in rejects)

    def add(self, other: Verdicts) -> None:
        self.kept += other.kept
        self.mended += other.mended
        self.rejected += other.rejected
        self.by_reason.update(other.by_reason)
        self.learned += other.learned
        self.largest = max(self.largest, other.largest)
        self.noted.update(other.noted)
        self.unused.merge(other.unused)
        self.weights.merge(other.weights)
        self.taught.merge(other.taught)

    def without(self, gone: Verdicts, dropped: Counter[str]) -> Verdicts:
        """Return the verdicts where rows that are trained on here, with these verdicts, are rejected for other reasons."""
        counts = {name: getattr(self, name) - getattr(gone, name) for name in ("kept", "mended", "noted", "unused", "taught")}
        rejected, reasons = self.rejected + dropped.total(), self.by_reason - gone.by_reason + dropped
        return replace(self, rejected=rejected, by_reason=reasons, **counts)

    def facts(self) -> Json:
        """Return the verdicts as they are stored; `verdicts_of` reads them."""
        return vars(self) | {"unused": vars(self.unused), "weights": vars(self.weights), "taught": vars(self.taught)}


def verdicts_of(facts: Json) -> Verdicts:
    """Restore verdicts from `Verdicts.facts`."""
    counters: Json = {name: Counter(facts[name]) for name in ("by_reason", "noted")}
    unused = UnusedFields(**{name: Counter(found) for name, found in facts["unused"].items()})
    return Verdicts(
        **facts | counters | {"unused": unused, "weights": Weights(**facts["weights"]), "taught": LearnedAnswers(**facts["taught"])}
    )


@dataclass(frozen=True)
class Shard:
    """A tokenised block: ids int32 and learned uint8 [tokens], lengths int32 and lines int32 (from the block's first) [rows],
    a row that was split as several of one line, weights fp32 [rows], none where all rows count alike, shares fp32 [tokens]: how much each
    counts as a target, none where all learned ones count whole,
    what each row hangs together with others by as in Kin, rejects uint8: one JSON object a line, its line counted like the others."""

    ids: npt.NDArray[np.int32]
    learned: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    shares: npt.NDArray[np.float32]
    rejects: npt.NDArray[np.uint8]
    conversations: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]
    comparable: npt.NDArray[np.uint8]
    signatures: npt.NDArray[np.uint8]
    verdicts: Verdicts

    def rejected(self, file: str, first_line: int) -> Iterator[Json]:
        """Yield the rejects as they stand in rejects.jsonl, of a block that begins at `first_line` of `file`."""
        return placed(self.rejects, file, first_line)


def tokenise(block: Block, rules: Rules, codec: Codec) -> Shard:
    """Check and tokenise a block; rows longer than `rules.max_tokens` are cut or split (mended), or rejected."""
    verdicts = Verdicts()
    kept: list[tuple[int, Tokens]] = []
    weights: list[float] = []
    times: list[int] = []
    trained: list[JudgedRow] = []
    taught: list[RenderedRow] = []
    good, rejects = readable(block, rules, codec)
    encoded = iter(codec.encode([pieces for _, written in good for pieces in written.sequences], rules))
    for row, written in good:
        found = [next(encoded) for _ in written.sequences]
        try:
            parts = fitted(row.example, found, codec, rules)
            if rules.wanted != "answers":
                parts = judged_answers(row.example, parts, codec, rules)
        except BadRow as bad:
            rejects.append(Reject(row.source, bad.reason, bad.detail, row.raw))
            continue
        kept += [(row.line, part) for part in parts.rows]
        weights += [1.0 if row.weight is None else row.weight] * len(parts.rows)
        times.append(len(parts.rows))
        verdicts.take(row, parts.changes)
        verdicts.taught.take(written, parts.lost, parts.torn)
        row.tokens = parts.whole if len(found) == 1 else None
        trained.append(row)
        taught.append(written)
    verdicts.reject(rejects)
    for reason, row, _ in (*((card.reason, row, "") for card, row, _ in note(trained, rules)), *notes_of(trained, taught, codec)):
        verdicts.noted[reason] += 1
        verdicts.first[reason] = min(row.line, verdicts.first.get(reason, row.line))
    verdicts.unused.add([(row.value, row.example) for row in trained], dict(rules.fields), rules.beside)
    verdicts.weights.take(row.weight for row in trained)
    ids = np.fromiter(itertools.chain.from_iterable(tokens.ids for _, tokens in kept), np.int32)
    learned, shares = _flags([tokens for _, tokens in kept], rules.wanted == "answers" and any(one.shares for one in taught))
    verdicts.learned, verdicts.largest = int((learned & 1).sum()), int(ids.max(initial=-1))
    lengths = np.array([len(tokens.ids) for _, tokens in kept], np.int32)
    lines = np.array([line for line, _ in kept], np.int32)
    counts = np.array(weights if rules.weight else [], np.float32)
    return Shard(ids, learned, lengths, lines, counts, shares, as_lines(rejects), *kin_of(trained, times), verdicts)


def judged_answers(example: Example, better: Parts, codec: Codec, rules: Rules) -> Parts:
    """Join a pair to one row of two sequences, the worse one second; its tokens, and those of an answer marked bad, have WORSE added.

    Raises BadRow where nothing of the worse answer is left, where both were cut to the same tokens, and where an answer counts less than
    whole.
    """
    (first,) = better.rows
    _refuse_shares(first)
    if not example.worse:
        flags = list(first.learned) if example.good else [flag + WORSE for flag in first.learned]
        return better._replace(rows=(Tokens(first.ids, flags, first.cut),))
    encoded = codec.encode([worse_pieces(example, codec.template)], rules)
    second = fitted(replace(example, messages=example.worse, worse=()), encoded, codec, rules)
    (other,) = second.rows
    _refuse_shares(other)
    if (first.cut or other.cut) and first.ids == other.ids:
        raise BadRow("answers_alike", f"chosen and rejected are the same answer up to max_tokens = {rules.max_tokens}")
    if rules.wanted == "marks":  # a pair is two marked answers
        bad = Tokens(other.ids, [flag + WORSE for flag in other.learned], other.cut)
        return better._replace(rows=(first, bad), changes=better.changes or second.changes)
    flags = [*first.learned, *(flag + WORSE for flag in other.learned)]
    changes = better.changes or second.changes
    return better._replace(rows=(Tokens([*first.ids, *other.ids], flags, first.cut + other.cut),), changes=changes)


def _flags(rows: list[Tokens], some: bool) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return which tokens are learned, and with which share: empty but where `some` answers count less than whole."""
    flags = itertools.chain.from_iterable(tokens.learned for tokens in rows)
    if not some:
        return np.fromiter(flags, np.uint8), np.array([], np.float32)
    shares = np.fromiter(flags, np.float32)
    return (shares > 0).astype(np.uint8), shares


def _refuse_shares(answer: Tokens) -> None:
    if any(0 < flag < 1 for flag in answer.learned):
        raise BadRow("bad_weight", "its answer has a weight between 0 and 1; answers that are held against others count whole")


def readable(block: Block, rules: Rules, codec: Codec) -> tuple[list[tuple[JudgedRow, RenderedRow]], list[Reject]]:
    """Return the rows that pass every check up to the tokens, each as the template writes it; and the rejects."""
    rows, rejects = judge(block.rows, block.first_line, rules, codec.specials)
    good = []
    for row in rows:
        found = pair_written(row.prompt, row.answer, codec.template) if row.is_pair else None
        try:
            written = learned_by(found, rules.learns) if found else write_learned(row.example, codec.template, rules.learns)
            good.append((row, written if rules.wanted == "answers" else compared_answer(written)))
        except BadRow as bad:
            rejects.append(Reject(row.source, bad.reason, bad.detail, row.raw))
    return good, rejects


def placed(lines: npt.NDArray[np.uint8], file: str, first_line: int) -> Iterator[Json]:
    """Yield the entries that `as_lines` made of a block that begins at `first_line` of `file`, as they stand in a journal."""
    for line in lines.tobytes().splitlines():
        entry = orjson.loads(line)
        yield {"file": file} | entry | {"line": first_line + entry["line"]}


def as_lines(rejects: list[Reject]) -> npt.NDArray[np.uint8]:
    """Encode rejects as JSON lines, by line of the file."""
    rejects.sort(key=lambda reject: reject.source.line)
    objects = ({key: value for key, value in reject.as_json().items() if key != "file"} for reject in rejects)
    return np.frombuffer(b"".join(json_line(entry) for entry in objects), np.uint8)


def shard_bytes(shard: Shard) -> bytes:
    """Return the shard as a safetensors file that can be checked."""
    arrays: dict[str, Array] = {name: getattr(shard, name) for name in _ARRAYS}
    facts: Json = {"version": _VERSION, **shard.verdicts.facts()}
    return pack(arrays, facts | {"sha256": checksum(arrays, facts)})


def read_shard(data: bytes) -> Shard:
    """Parse the shard in `data`. Raises ValueError with the reason when it is torn, damaged or of another version."""
    facts, arrays = unpack(data)
    if facts.get("version") != _VERSION:
        raise ValueError(f"it is of version {facts.get('version')}, this is version {_VERSION}")
    stated = facts.pop("sha256", None)
    if set(arrays) != set(_ARRAYS) or stated != checksum({name: arrays[name] for name in _ARRAYS}, facts):
        raise ValueError("its checksum does not match")
    del facts["version"]
    return Shard(**arrays, verdicts=verdicts_of(facts))


def checksum(arrays: dict[str, Array], facts: Json) -> str:
    """Return the SHA-256 of facts and of arrays, in their order."""
    digest = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS))
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
