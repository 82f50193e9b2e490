"""Characters that control terminals and mean nothing in a text."""

import re

import numpy as np

from holdfast.book.kinds.data_check import DataCheck, RowView

_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\ufffe\uffff]")

_OUTSIDE = "\x7f\ufeff\ufffe\uffff"  # those beyond the first 32
_ORDINARY = "\t\n\x0c\r"
_MANY = 4096  # characters from which on counting bytes is quicker than a pattern


def _may_hold_one(text: str) -> bool:
    if len(text) < _MANY:
        return _CONTROL.search(text) is not None
    low = np.count_nonzero(np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8) < 32)
    return bool(low > sum(map(text.count, _ORDINARY))) or any(character in text for character in _OUTSIDE)


def look(row: RowView) -> str:
    found = _CONTROL.findall(row.text)
    return f"{len(found)} control characters, the first U+{ord(found[0]):04X}" if found else ""


def mend(text: str) -> str:
    return _CONTROL.sub("", text)


CARD = DataCheck(
    title="Control characters in a text",
    why=(
        "NUL and its like come from binary data and broken exports. "
        "Tokenizers spend a token or more on each, and some programs end a text at NUL."
    ),
    source=["https://www.unicode.org/charts/PDF/U0000.pdf"],
    verdict="mend",
    screen=_may_hold_one,
    look=look,
    mend=mend,
    hits=[{"prompt": "a\x00b"}, {"answer": "\x1b[1mbold"}, {"answer": "x\ufeffy"}],
    misses=[{"prompt": "a\tb\r\nc\x0c"}, {"answer": "naïve \u200d"}],
)
