"""A run of base64 or hexadecimal digits where a text should be."""

import re

from holdfast.core.datacheck import DataCheck, RowView

_BLOB = re.compile(r"(?<![A-Za-z0-9+/=_-])[A-Za-z0-9+/=_-]{400,}")


def look(row: RowView) -> str:
    found = _BLOB.search(row.text)
    mixed = found and any(c.isdigit() for c in found[0]) and len(set(found[0])) > 8
    return f"{len(found[0]):,} characters of encoded data, beginning {found[0][:24]!r}" if found and mixed else ""


CARD = DataCheck(
    title="Encoded data in a text",
    why=("Base64 and hexadecimal dumps cost a token every two or three characters and cannot be learned. They usually are images or keys."),
    source=["https://arxiv.org/abs/2306.01116"],
    verdict="note",
    screen=_BLOB.search,
    look=look,
    hits=[{"answer": "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * 20}],
    misses=[{"answer": "-" * 500}, {"answer": "word " * 200}],
)
