"""Rows whose tokens are those of their whole text: which tokenizers need that, and to which piece of a row each token belongs.

A SentencePiece tokenizer puts a space before a text, and others strip its ends or write the middle of a word otherwise than its beginning.
Pieces that are encoded one by one would each get what stands in the whole text only once, and a model would learn that.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tokenizers import Encoding, Tokenizer

from holdfast.data.templates.skeleton import Piece


class TokenPlace(NamedTuple):
    """A token of a row, where it begins and ends in the row's text (characters), and the number of the piece it belongs to."""

    number: int
    begin: int
    end: int
    piece: int


def reads_whole(tokenizer: Tokenizer) -> bool:
    """True if the tokens of a text depend on where the text begins and ends, so that those of its pieces are not its own."""
    parts = [*_parts(state_of(tokenizer.normalizer)), *_parts(state_of(tokenizer.pre_tokenizer))]
    marks = (getattr(tokenizer.model, name, None) for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    return any(map(_changes_ends, parts)) or any(marks)


def state_of(part: Any) -> dict[str, Any]:
    """Return the settings of a part of a tokenizer; empty where there is none."""
    return dict(json.loads(part.__getstate__())) if part else {}


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a normalizer or pre-tokenizer and all that it is made of."""
    if isinstance(part, dict):
        yield part
        for inner in (*part.get("normalizers", ()), *part.get("pretokenizers", ())):
            yield from _parts(inner)


def _changes_ends(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if kind == "Metaspace":
        return bool(part.get("prepend_scheme", "always") != "never")
    return kind in ("Prepend", "Strip") or (kind == "ByteLevel" and bool(part.get("add_prefix_space")))


def runs_of(row: list[Piece], whole: bool, lead: str) -> list[list[Piece]]:
    """Group the pieces of a row that are encoded as one text: each alone, or all; but for what the tokenizer itself puts before a text."""
    if not whole:
        return [[piece] for piece in row]
    if len(row) > 2 and lead and row[0] == (lead, False) and not row[1][1]:  # of a text; a template writes no two given pieces there
        return [row[:1], row[1:]]
    return [row]


def text_of(run: list[Piece]) -> str:
    return run[0][0] if len(run) == 1 else "".join([text for text, _ in run])


def sizes_of(encoding: Encoding, run: list[Piece]) -> list[int]:
    """Count the tokens of each piece of a run."""
    if len(run) == 1:
        return [len(encoding)]
    found = [0] * len(run)
    for piece in pieces_of(encoding.offsets, run):
        found[piece] += 1
    return found


def pieces_of(offsets: Sequence[tuple[int, int]], row: Sequence[Piece]) -> list[int]:
    """Return to which piece of a row each token of its text belongs, by the characters it is made of.

    A token with characters of several pieces belongs to the first of them that is learned, as transformers' masks have it.
    """
    ends = [*itertools.accumulate(len(text) for text, _ in row)]
    found, at = [], 0
    for begin, end in offsets:
        while at < len(ends) - 1 and ends[at] <= begin:
            at += 1
        piece = at
        while not row[piece][1] and piece < len(ends) - 1 and ends[piece] < end:
            piece += 1
        found.append(piece if row[piece][1] else at)
    return found
