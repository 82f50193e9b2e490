"""Characters that control terminals and mean nothing in a text."""

import re

from holdfast.core.datacheck import DataCheck, RowView

_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\ufffe\uffff]")


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
    screen=_CONTROL.search,
    look=look,
    mend=mend,
    hits=[{"prompt": "a\x00b"}, {"answer": "\x1b[1mbold"}, {"answer": "x\ufeffy"}],
    misses=[{"prompt": "a\tb\r\nc\x0c"}, {"answer": "naïve \u200d"}],
)
