"""Characters nobody sees that change what is read."""

import re

from holdfast.book.kinds.data_check import DataCheck, RowView

_HIDDEN = re.compile("[\u200b\u2060\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


def look(row: RowView) -> str:
    found = _HIDDEN.findall(row.text)
    return f"{len(found)} characters that are not seen, the first U+{ord(found[0]):04X}" if found else ""


CARD = DataCheck(
    title="Invisible characters",
    why=(
        "Zero-width spaces split words for a tokenizer, and bidirectional controls make a text read otherwise than it is stored. "
        "Joiners that scripts and emoji need are left alone."
    ),
    source=["https://www.unicode.org/reports/tr36/", "https://trojansource.codes/"],
    verdict="note",
    screen=_HIDDEN.search,
    beyond_ascii=True,
    look=look,
    hits=[{"answer": "pass\u200bword"}, {"prompt": "a\u202eb"}],
    misses=[{"answer": "👩\u200d💻 می\u200cخواهم"}, {"answer": "plain\u00a0text"}],
)
