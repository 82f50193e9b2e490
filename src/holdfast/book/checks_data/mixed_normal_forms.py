"""Letters and their accents stored apart."""

import re
import unicodedata

from holdfast.book.kinds.data_check import DataCheck, RowView

_MARK = re.compile("[\u0300-\u0328]")
_ACCENT = re.compile("[A-Za-z][\u0300-\u0304\u0306-\u030c\u0327\u0328]")


def look(row: RowView) -> str:
    found = _ACCENT.search(row.text)
    return f"{found[0]!r} is stored as two characters (NFD)" if found and not unicodedata.is_normalized("NFC", found[0]) else ""


CARD = DataCheck(
    title="Decomposed letters",
    why=(
        "The same letter stored as one character or as two gives different tokens. Text from macOS file names and some PDFs is decomposed."
    ),
    source=["https://www.unicode.org/reports/tr15/"],
    verdict="note",
    screen=_MARK.search,
    beyond_ascii=True,
    look=look,
    hits=[{"answer": "scho\u0308n"}],
    misses=[{"answer": "schön"}, {"answer": "x\u0304"}],
)
