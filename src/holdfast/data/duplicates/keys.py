"""What identifies each row of a set: hashes of its value, its texts and its prompt. Reads files; some hundred bytes a row are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.data.duplicates.seen import Keys, Mask
from holdfast.data.duplicates.similar import BINS, Signatures, compared_texts, key_of, normal, own_text, signatures
from holdfast.data.files.raw_row import Reject, Source
from holdfast.data.files.read import line_of, parse, read_unparsed
from holdfast.data.judge.judge import beside_answer, view_of, with_calls
from holdfast.data.judge.layouts import Wanted, parse_example
from holdfast.data.judge.turns import BadRow

_WANTED: tuple[Wanted, ...] = ("answers", "pairs", "marks")  # what a row may be read as, the first that it can be
_AT_ONCE = 1024  # rows whose signatures are made together


class RowLine(NamedTuple):
    """A row: where it stood, its line of JSON, its value (None where it has none that can be read)."""

    source: Source
    text: bytes
    value: Any

    def of(self, field: str) -> str:
        """Return the row's value in a field, as a name; "" where it has none."""
        found = self.value.get(field) if isinstance(self.value, dict) else None
        return found if isinstance(found, str) else "" if found is None else orjson.dumps(found, default=str).decode()


def lines_of(files: list[str], whole: bool) -> Iterator[RowLine]:
    """Yield every row of the files, in order. `whole`: raise Stop(1) at a row that cannot be read, instead of giving its bytes."""
    for file in files:
        for unparsed in read_unparsed(file):
            row = parse(file, unparsed)
            if isinstance(row, Reject):
                if whole:
                    hint = f"write the good rows first: holdfast data clean {file} --out clean.jsonl --rejects rejects.jsonl"
                    raise Stop(BLOCKED, f"{row.source} cannot be read ({row.reason}: {row.detail[:200]})", hint)
                yield RowLine(row.source, row.raw, None)
            else:
                yield RowLine(row.source, line_of(unparsed, row.value), row.value)


@dataclass(frozen=True)
class RowKeys:
    """[rows] each: hash of the value, of prompt and answer (but for case and spaces), of the prompt (0 without one); whether there is
    enough text to compare, [rows, BINS] signatures; the number of its category in `categories`."""

    values: Keys
    pairs: Keys
    prompts: Keys
    comparable: Mask
    signatures: Signatures
    category: npt.NDArray[np.int32]
    categories: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)


def keys_of(lines: Iterator[RowLine], category: str, compared: bool) -> RowKeys:
    """Return the keys of rows; `category`: the field that names it ("" for none); `compared`: with signatures, else those are empty."""
    values, pairs, prompts, numbers = [], [], [], []
    names: dict[str, int] = {}
    texts: list[str] = []
    parts: list[tuple[Signatures, Mask]] = []
    for line in lines:
        prompt, text, own = _texts(line)
        values.append(key_of(_canonical(line)))
        pairs.append(key_of(text))
        prompts.append(key_of(prompt) if prompt else 0)
        numbers.append(names.setdefault(line.of(category) if category else "", len(names)))
        if compared:
            texts.append(own)
        if len(texts) == _AT_ONCE:
            parts.append(signatures(texts))
            texts = []
    parts.append(signatures(texts))
    made = np.concatenate([part for part, _ in parts]) if compared else np.zeros((0, BINS), np.uint8)
    comparable = np.concatenate([enough for _, enough in parts])
    numbered = np.array(numbers, np.int32)
    hashes = [np.array(found, np.int64) for found in (values, pairs, prompts)]
    return RowKeys(hashes[0], hashes[1], hashes[2], comparable, made, numbered, tuple(names))


def _texts(line: RowLine) -> tuple[str, str, str]:
    """Return prompt and whole text as they are compared, and that without system turns and tools, by which rows are nearly alike.

    Of a row of no known layout the row itself is the text.
    """
    for wanted in _WANTED:
        try:
            example = parse_example(line.value, "auto", wanted=wanted)
        except BadRow:
            continue
        view = view_of(example)
        called = with_calls(example, view.prompt, view.answer)
        beside, asked = beside_answer(example, wanted == "marks"), normal(called[0])
        text = compared_texts(asked, called[1], *beside)[0]
        return asked, text, own_text(example, view.prompt, called, beside, text)
    text = normal(line.text.decode("utf-8", "replace"))
    return "", text, text


def _canonical(line: RowLine) -> str:
    try:
        return orjson.dumps(line.value, option=orjson.OPT_SORT_KEYS).decode() if line.value is not None else line.text.hex()
    except orjson.JSONEncodeError:  # whole numbers beyond 64 bits
        return line.text.decode("utf-8", "replace")
