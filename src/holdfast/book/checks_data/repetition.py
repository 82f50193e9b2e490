"""An answer that says the same thing again and again."""

import zlib

from holdfast.book.kinds.data_check import Columns, DataCheck, RowView

_SHORTEST = 400  # characters; below, repeating is ordinary
_SMALLEST_SHARE = 0.09  # of its size that a compressed text keeps; ordinary prose keeps 0.3 to 0.6


def sift(rows: Columns) -> list[int]:
    return [at for at, answer in enumerate(rows.answers) if len(answer) >= _SHORTEST]


def look(row: RowView) -> str:
    data = row.answer[: 1 << 16].encode("utf-8", "replace")
    share = len(zlib.compress(data, 1)) / len(data)
    return f"the answer repeats itself: it compresses to {share:.1%} of its size" if share < _SMALLEST_SHARE else ""


CARD = DataCheck(
    title="The answer repeats itself",
    why=(
        "A model that fell into a loop wrote this answer, and a model that learns it falls into loops. "
        "Measured by how far the text compresses."
    ),
    source=["https://arxiv.org/abs/2112.11446"],
    verdict="note",
    sift=sift,
    look=look,
    hits=[{"answer": "I am happy to help. " * 60}],
    misses=[{"answer": " ".join(f"Item {number} costs {number * number} coins in town {number * 7 % 31}." for number in range(20))}],
)
