"""What `data check` and `data clean` know of a block: verdicts, lengths, notes, hashes, and the lines of the clean file. Reads no file.

It follows from the block's bytes and the rules, like a shard, so the work of an interrupted cleaning is found again by its name.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.data.duplicates.similar import BINS, compared_texts, hashes, normal, own_text, signatures
from holdfast.data.files.raw_row import Reject, json_line, json_of, raw_json
from holdfast.data.files.read import line_of
from holdfast.data.judge.judge import JudgedRow, beside_answer, with_calls
from holdfast.data.judge.notes import note
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Example
from holdfast.data.survey.languages import languages_of
from holdfast.data.survey.scripts import scripts_of
from holdfast.data.templates.chat_template import worse_pieces
from holdfast.data.templates.conversation import RenderedRow
from holdfast.data.token_set.arrays import Array, pack, unpack
from holdfast.data.tokens.codec import Codec, Fit
from holdfast.data.tokens.shard import Block, Verdicts, as_lines, checksum, judged_answers, placed, readable, verdicts_of
from holdfast.data.tokens.taught import notes_of
from holdfast.data.tokens.too_long import Changes, Sizes, fitted, fitted_sizes

_SHOWN = 200  # characters of a row that is quoted
_QUOTED = 3  # rows a block quotes for one note
_NUMBERS = ("at", "lines", "lengths", "parts", "whole", "weights", "pairs", "turned", "prompts", "comparable", "signatures")
_COUNTS = ("layouts", "scripts", "languages", "categories", "longer", "marked")
_CATEGORY_FIELDS = ("category", "task", "topic", "type", "source", "lang")
_LONGEST_CATEGORY = 60  # characters; longer ones are texts
_ARRAYS = (*_NUMBERS, "rejects", "mended", "notes", "clean")


@dataclass(frozen=True)
class Survey:
    """Of the rows that are kept or mended, [rows] each: place in the block, line (from the block's first), tokens that are trained on
    ([parts of all rows]), how many parts it is split into, tokens before cut or split, weight (NaN without one), hash of the row, of the
    one that says the opposite (0 without one), hash of its prompt (0 without one), whether there is enough text to compare, [rows, BINS]
    signatures. Then JSON lines: rejects, what was mended, examples of notes, and the clean rows themselves."""

    at: npt.NDArray[np.int32]
    lines: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]
    parts: npt.NDArray[np.int32]
    whole: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float64]
    pairs: npt.NDArray[np.int64]
    turned: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]
    comparable: npt.NDArray[np.uint8]
    signatures: npt.NDArray[np.uint8]
    rejects: npt.NDArray[np.uint8]
    mended: npt.NDArray[np.uint8]
    notes: npt.NDArray[np.uint8]
    clean: npt.NDArray[np.uint8]
    verdicts: Verdicts
    layouts: Counter[str]
    scripts: Counter[str]
    languages: Counter[str]
    categories: Counter[str]
    longer: Counter[str]  # of pairs: which of the two answers has more characters
    marked: Counter[str]  # of marked answers: good and bad

    def entries(self, name: str, file: str, first_line: int) -> Iterator[Json]:
        """Yield the entries of `rejects`, `mended` or `notes`, of a block that begins at `first_line` of `file`."""
        return placed(getattr(self, name), file, first_line)

    def without(self, gone: Survey, dropped: Counter[str]) -> Survey:
        """Return the survey with the counts of rows taken off that are dropped after all, for these reasons; its arrays stay."""
        counts: Json = {name: getattr(self, name) - getattr(gone, name) for name in _COUNTS}
        return replace(self, verdicts=self.verdicts.without(gone.verdicts, dropped), **counts)


def check_block(block: Block, rules: Rules, codec: Codec) -> bytes:
    """Return the survey of a block as bytes, without the clean lines."""
    return _bytes(survey_of(block, rules, codec))


def clean_block(block: Block, rules: Rules, codec: Codec) -> bytes:
    """Return the survey of a block as bytes."""
    return _bytes(survey_of(block, rules, codec, with_clean=True))


def survey_of(block: Block, rules: Rules, codec: Codec, with_clean: bool = False) -> Survey:
    """Return the survey of a block, with the lines of a clean file where they are wanted."""
    good, rejects = readable(block, rules, codec)
    rows, sizes = _fitting(good, rejects, rules, codec)
    verdicts = Verdicts()
    for written, lost, torn in zip(sizes.written, sizes.lost, sizes.torn, strict=True):
        verdicts.taught.take(written, lost, torn)
    verdicts.reject(rejects)
    mended = [(row, changes) for row, changes in zip(rows, sizes.changes, strict=True) if row.mended or changes]
    for row, changes in mended:
        verdicts.take(row, changes)
    verdicts.kept += len(rows) - len(mended)
    notes = _notes(rows, sizes, rules, codec, verdicts)
    verdicts.unused.add([(row.value, row.example) for row in rows], dict(rules.fields), rules.beside)
    languages = languages_of([row.prompt or row.answer for row in rows]) if rules.languages else []
    firsts = {language: row for row, language in zip(reversed(rows), reversed(languages), strict=False)}  # of each language
    notes += [_quote(row, f"language_{language}", f"the row reads like language {language!r}") for language, row in firsts.items()]
    called = [with_calls(row.example, row.prompt, row.answer) for row in rows]
    prompts = [normal(prompt) for prompt, _ in called]
    beside = [beside_answer(row.example, rules.wanted == "marks") for row in rows]
    both = [compared_texts(prompt, answer, *each) for prompt, (_, answer), each in zip(prompts, called, beside, strict=True)]
    texts = [text for text, _ in both]
    compared, comparable = signatures(
        [own_text(row.example, row.prompt, call, mark, text) for row, call, mark, text in zip(rows, called, beside, texts, strict=True)]
    )
    return Survey(
        at=np.array([row.at for row in rows], np.int32),
        lines=np.array([row.line for row in rows], np.int32),
        lengths=np.array(sizes.lengths, np.int32),
        parts=np.array(sizes.parts, np.int32),
        whole=np.array(sizes.whole, np.int32),
        weights=np.array([math.nan if row.weight is None else row.weight for row in rows], np.float64),
        pairs=hashes(texts),
        turned=hashes([turned for _, turned in both]),
        prompts=hashes(prompts),
        comparable=comparable.astype(np.uint8),
        signatures=compared.reshape(-1),
        rejects=as_lines(rejects),
        mended=_json_lines([entry for row, changes in mended for entry in _mends(row, changes)]),
        notes=_json_lines(notes),
        clean=np.frombuffer(b"".join(_clean_line(row, block) for row in rows), np.uint8) if with_clean else np.zeros(0, np.uint8),
        verdicts=verdicts,
        layouts=Counter([row.layout for row in rows]),
        scripts=scripts_of([row.text for row in rows if not row.is_ascii], len(rows)),
        languages=Counter(languages),
        categories=Counter(filter(None, [_category(row.value) for row in rows])),
        longer=Counter([_longer(row.example) for row in rows if row.layout == "preference"]),
        marked=Counter([mark for _, mark in beside if mark]),
    )


def _sizes(example: Example, found: list[int | Fit | BadRow], codec: Codec, rules: Rules) -> Sizes:
    size = found[0]
    return Sizes((size,), size) if isinstance(size, int) and len(found) == 1 else fitted_sizes(example, found, codec, rules)


def _of_both(example: Example, written: RenderedRow, better: Sizes, codec: Codec, rules: Rules) -> Sizes:
    """Return the sizes of a pair, one row of two sequences, each of which has to fit. Raises BadRow as `judged_answers` does."""
    size = codec.measure([worse_pieces(example, codec.template)], rules)
    worse = _sizes(replace(example, messages=example.worse, worse=()), size, codec, rules)
    both = (better.lengths[0], worse.lengths[0])
    if both[0] == both[1] < max(better.whole, worse.whole):  # both were cut there, maybe to the same tokens
        judged_answers(example, fitted(example, codec.encode(written.sequences, rules), codec, rules), codec, rules)
    lengths = (sum(both),) if rules.wanted == "pairs" else both
    return better._replace(lengths=lengths, whole=max(better.whole, worse.whole), changes=better.changes or worse.changes)


@dataclass
class _FittedRows:
    """Of the rows that can be trained on: tokens of each part, how many parts, tokens of the whole row, what was changed to fit it in, how
    it is written, and of how many answers the limit takes all, or the end.
    """

    lengths: list[int] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    changes: list[Changes] = field(default_factory=list)
    written: list[RenderedRow] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)


def _fitting(
    good: list[tuple[JudgedRow, RenderedRow]], rejects: list[Reject], rules: Rules, codec: Codec
) -> tuple[list[JudgedRow], _FittedRows]:
    """Return the rows of which something can be learned, and their sizes; the others go to the rejects."""
    rows: list[JudgedRow] = []
    found = _FittedRows()
    sizes = codec.measure([pieces for _, written in good for pieces in written.sequences], rules)
    at = 0
    for row, written in good:
        own = sizes[at : at + len(written.sequences)]
        at += len(own)
        try:
            size = _sizes(row.example, own, codec, rules)
            if row.layout == "preference":
                size = _of_both(row.example, written, size, codec, rules)
        except BadRow as bad:
            rejects.append(Reject(row.source, bad.reason, bad.detail, row.raw))
            continue
        rows.append(row)
        found.lengths += size.lengths
        found.parts.append(len(size.lengths))
        found.whole.append(size.whole)
        found.changes.append(size.changes)
        found.written.append(written)
        found.lost.append(size.lost)
        found.torn.append(size.torn)
    return rows, found


def _mends(row: JudgedRow, fitted: Changes) -> list[Json]:
    return [{"line": row.line, "reason": reason, "detail": detail} | raw_json(row.raw) for reason, detail in (*row.mended, *fitted)]


def _notes(rows: list[JudgedRow], sizes: _FittedRows, rules: Rules, codec: Codec, verdicts: Verdicts) -> list[Json]:
    """Return the first few rows each note was made of; `verdicts` counts them all."""
    for row, size, written in [] if codec.stands_in else zip(rows, sizes.whole, sizes.written, strict=True):
        row.tokens = size if len(written.sequences) == 1 else None
    quoted: list[Json] = []
    of_texts = ((card.reason, row, detail) for card, row, detail in note(rows, rules))
    for reason, row, detail in (*of_texts, *notes_of(rows, sizes.written, codec)):
        verdicts.noted[reason] += 1
        verdicts.first[reason] = min(row.line, verdicts.first.get(reason, row.line))
        if verdicts.noted[reason] <= _QUOTED:
            quoted.append(_quote(row, reason, detail))
    return quoted


def _quote(row: JudgedRow, reason: str, detail: str) -> Json:
    return {"line": row.line, "reason": reason, "detail": detail} | raw_json(row.raw[:_SHOWN].decode("utf-8", "replace").encode())


def _longer(pair: Example) -> str:
    better, worse = (len(turns[-1].said) for turns in (pair.messages, pair.worse))
    return "better" if better > worse else "worse" if worse > better else "same"


def _category(value: Any) -> str:
    """Return the category of a row, by the first of its fields that is named like one; "" where none is."""
    for name in _CATEGORY_FIELDS if isinstance(value, dict) else ():
        found = value.get(name)
        if isinstance(found, str) and 0 < len(found) <= _LONGEST_CATEGORY:
            return found
    return ""


def _clean_line(row: JudgedRow, block: Block) -> bytes:
    """Return a row as a line of the clean file: byte for byte as it stood where it was a line of JSON and nothing was mended."""
    if row.mended:
        return json_of({"messages": row.value} if isinstance(row.value, list) else row.value) + b"\n"
    return line_of(block.rows[row.at], row.value)


def _json_lines(entries: list[Json]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(json_line(entry) for entry in entries), np.uint8)


def _bytes(survey: Survey) -> bytes:
    arrays: dict[str, Array] = {name: getattr(survey, name) for name in _ARRAYS}
    facts: Json = {"verdicts": survey.verdicts.facts()} | {name: getattr(survey, name) for name in _COUNTS}
    return pack(arrays, facts | {"sha256": checksum(arrays, facts)})


def read_survey(data: bytes) -> Survey:
    """Parse the survey in `data`. Raises ValueError when it is torn or damaged."""
    facts, arrays = unpack(data)
    stated = facts.pop("sha256", None)
    if set(arrays) != set(_ARRAYS) or stated != checksum({name: arrays[name] for name in _ARRAYS}, facts):
        raise ValueError("its checksum does not match")
    arrays["signatures"] = arrays["signatures"].reshape(-1, BINS)
    fields: Json = arrays | {name: Counter(facts[name]) for name in _COUNTS}
    return Survey(**fields, verdicts=verdicts_of(facts["verdicts"]))
