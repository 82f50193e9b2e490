"""A run of base64 or hexadecimal digits where a text should be."""

import re

import numpy as np

from holdfast.book.kinds.data_check import DataCheck, RowView

_BLOB = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{400,}")
_HALF = re.compile(rb"[A-Za-z0-9+/=_-]{200}")


def _may_hold_one(text: str) -> bool:
    """Return whether the text needs a look: 400 characters of a blob cover 200 bytes from some multiple of 200 on, without white space."""
    data = text.encode("utf-8", "surrogatepass")
    parts = np.frombuffer(data, np.uint8, len(data) // 200 * 200).reshape(-1, 200)
    return any(_HALF.match(data, 200 * int(at)) for at in np.flatnonzero(~(parts <= 32).any(axis=1)))


def look(row: RowView) -> str:
    found = _BLOB.search(row.text)
    mixed = found and any(c.isdigit() for c in found[0]) and len(set(found[0])) > 8
    return f"{len(found[0]):,} characters of encoded data, beginning {found[0][:24]!r}" if found and mixed else ""


CARD = DataCheck(
    title="Encoded data in a text",
    why=("Base64 and hexadecimal dumps cost a token every two or three characters and cannot be learned. They usually are images or keys."),
    source=["https://arxiv.org/abs/2306.01116"],
    verdict="note",
    screen=_may_hold_one,
    look=look,
    hits=[{"answer": "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 20}],
    misses=[{"answer": "-" * 500}, {"answer": "word " * 200}],
)
