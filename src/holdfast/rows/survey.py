"""What `data check` and `data clean` know of a block: verdicts, lengths, notes, hashes, and the lines of the clean file. Reads no file.

It follows from the block's bytes and the rules, like a shard, so the work of an interrupted cleaning is found again by its name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson

from holdfast.core.datacheck import RowView
from holdfast.core.files import Json
from holdfast.rows.arrays import Array, pack, unpack
from holdfast.rows.formats import BadRow
from holdfast.rows.judge import Judged, active, joined_text
from holdfast.rows.rawrow import Reject, json_line, raw_json
from holdfast.rows.read import json_of
from holdfast.rows.rules import Rules, checks
from holdfast.rows.shard import Block, Verdicts, as_lines, readable
from holdfast.rows.similar import BINS, key_of, normal, signatures
from holdfast.rows.tokens import Codec, Fit

_SHOWN = 200  # characters of a row that is quoted
_QUOTED = 3  # rows a block quotes for one note
_ARRAYS = ("at", "lines", "lengths", "whole", "pairs", "prompts", "comparable", "signatures", "rejects", "mended", "notes", "clean")


@dataclass(frozen=True)
class Survey:
    """Of the rows that are kept or mended, [rows] each: place in the block, line (from the block's first), tokens that are trained on,
    tokens before the cut, hash of the row, hash of its prompt (0 without one), whether there is enough text to compare, [rows, BINS]
    signatures. Then JSON lines: rejects, what was mended, examples of notes, and the clean rows themselves."""

    at: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    whole: npt.NDArray[np.int32]
    pairs: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]
    comparable: npt.NDArray[np.uint8]
    signatures: npt.NDArray[np.uint8]
    rejects: npt.NDArray[np.uint8]
    mended: npt.NDArray[np.uint8]
    notes: npt.NDArray[np.uint8]
    clean: npt.NDArray[np.uint8]
    verdicts: Verdicts
    noted: Counter[str]
    layouts: Counter[str]

    def entries(self, name: str, file: str, first_line: int) -> Iterator[Json]:
        """The entries of `rejects`, `mended` or `notes`, of a block that begins at `first_line` of `file`."""
        for line in getattr(self, name).tobytes().splitlines():
            entry = orjson.loads(line)
            yield {"file": file} | entry | {"line": first_line + entry["line"]}


def check_block(block: Block, rules: Rules, codec: Codec) -> bytes:
    """The survey of a block as bytes, without the clean lines."""
    return _bytes(_survey(block, rules, codec, with_clean=False))


def clean_block(block: Block, rules: Rules, codec: Codec) -> bytes:
    """The survey of a block as bytes."""
    return _bytes(_survey(block, rules, codec, with_clean=True))


def _survey(block: Block, rules: Rules, codec: Codec, with_clean: bool) -> Survey:
    verdicts = Verdicts()
    good, rejects = readable(block, rules, codec)
    kept: list[tuple[Judged, Fit]] = []
    mended: list[Json] = []
    for (row, _), size in zip(good, codec.measure([text for _, text in good], rules), strict=True):
        if isinstance(size, BadRow):
            rejects.append(Reject(row.source, size.reason, size.detail, row.raw))
            continue
        kept.append((row, size))
        verdicts.take(row, size.cut)
        mended += _mends(row, size)
    verdicts.reject(rejects)
    rows = [row for row, _ in kept]
    noted, notes = _notes(kept)
    prompts = [normal(row.view.prompt) for row in rows]
    texts = [f"{prompt}\n{normal(row.view.answer)}" for prompt, row in zip(prompts, rows, strict=True)]
    compared, comparable = signatures(texts)
    return Survey(
        at=np.array([row.at for row in rows], np.int32),
        lines=np.array([row.source.line for row in rows], np.int32),
        lengths=np.array([size.tokens for _, size in kept], np.int32),
        whole=np.array([size.tokens + size.cut for _, size in kept], np.int32),
        pairs=np.array([key_of(text) for text in texts], np.int64),
        prompts=np.array([key_of(prompt) if prompt else 0 for prompt in prompts], np.int64),
        comparable=comparable.astype(np.uint8),
        signatures=compared.reshape(-1),
        rejects=as_lines(rejects),
        mended=_json_lines(mended),
        notes=_json_lines(notes),
        clean=np.frombuffer(b"".join(_clean_line(row, block) for row in rows), np.uint8) if with_clean else np.zeros(0, np.uint8),
        verdicts=verdicts,
        noted=noted,
        layouts=Counter(row.example.layout for row in rows),
    )


def _mends(row: Judged, size: Fit) -> list[Json]:
    changes = [*row.mended]
    if size.cut:
        changes.append(("answer_cut", f"{size.cut:,} of {size.tokens + size.cut:,} tokens are left out in training; the row stays whole"))
    return [{"line": row.source.line, "reason": reason, "detail": detail} | raw_json(row.raw) for reason, detail in changes]


def _notes(kept: list[tuple[Judged, Fit]]) -> tuple[Counter[str], list[Json]]:
    """How many rows each note was made of, and the first few of them."""
    rows = [row for row, _ in kept]
    for row, size in kept:
        tools = row.example.tools or any(turn.calls for turn in row.view.turns)  # their tokens are not in the text
        row.view = RowView(*row.view[:-1], None if tools else size.tokens + size.cut)
    found: Counter[str] = Counter()
    quoted: list[Json] = []
    for card in active([card for card in checks() if card.verdict == "note"], joined_text(rows), rows):
        for row in rows:
            if detail := card.finds(row.view):
                found[card.reason] += 1
                if found[card.reason] <= _QUOTED:
                    entry = {"line": row.source.line, "reason": card.reason, "detail": detail}
                    quoted.append(entry | raw_json(row.raw[:_SHOWN].decode("utf-8", "replace").encode()))
    return found, quoted


def _clean_line(row: Judged, block: Block) -> bytes:
    """A row as it goes into the clean file: byte for byte as it stood where it was a line of JSON and nothing was mended."""
    if row.mended:
        return json_of({"messages": row.value} if isinstance(row.value, list) else row.value) + b"\n"
    text = block.rows[row.at].json or row.raw
    if isinstance(row.value, list):  # a bare list of turns; as a line of its own the file's first one would be read as an array
        text = b'{"messages": ' + text.strip() + b"}"
    return text.strip().replace(b"\r", b" ").replace(b"\n", b" ") + b"\n"


def _json_lines(entries: list[Json]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(json_line(entry) for entry in entries), np.uint8)


def _bytes(survey: Survey) -> bytes:
    arrays: dict[str, Array] = {name: getattr(survey, name) for name in _ARRAYS}
    facts: Json = {"verdicts": vars(survey.verdicts), "noted": survey.noted, "layouts": survey.layouts}
    return pack(arrays, facts | {"sha256": _checksum(arrays, facts)})


def read_survey(data: bytes) -> Survey:
    """The survey in `data`. Raises ValueError when it is torn or damaged."""
    facts, arrays = unpack(data)
    stated = facts.pop("sha256", None)
    if set(arrays) != set(_ARRAYS) or stated != _checksum(arrays, facts):
        raise ValueError("its checksum does not match")
    verdicts = Verdicts(**facts["verdicts"] | {"by_reason": Counter(facts["verdicts"]["by_reason"])})
    arrays["signatures"] = arrays["signatures"].reshape(-1, BINS)
    return Survey(**arrays, verdicts=verdicts, noted=Counter(facts["noted"]), layouts=Counter(facts["layouts"]))


def _checksum(arrays: dict[str, Array], facts: Json) -> str:
    digest = hashlib.sha256(orjson.dumps(facts, option=orjson.OPT_SORT_KEYS))
    for name in _ARRAYS:
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()
