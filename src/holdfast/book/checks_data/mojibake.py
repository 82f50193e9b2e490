"""UTF-8 that was read as another encoding."""

import re

from holdfast.book.kinds.data_check import DataCheck, RowView

_LEAD = re.compile(
    "[\u00c2\u00c3\u00c5\u00ce\u00cf\u00d0\u00d1\u00d8\u00d9\u00e0\u00e2-\u00e9\u00ef\u00f0\u0102\u0393\u0413\u251c\u0432][^\x00-\x7f]"
)

_LAYERS = 8  # times that a text may have been read wrongly


def _mended(text: str) -> str:
    for _ in range(_LAYERS):
        if text.isascii() or not _LEAD.search(text):
            break
        import ftfy  # 0.1 s, and most sets have nothing for it
        from ftfy.badness import is_bad

        if not is_bad(text):
            break
        before, text = text, ftfy.fix_encoding(text)
        if text == before:
            break
    return text


def look(row: RowView) -> str:
    for text in (row.answer, row.prompt):
        mended = _mended(text)
        if mended != text:
            at = next(number for number, (one, two) in enumerate(zip(text, mended + "\0", strict=False)) if one != two)
            return f"{text[at : at + 12]!r} was {mended[at : at + 8]!r} before it was read in a wrong encoding"
    return ""


CARD = DataCheck(
    title="Mojibake",
    why=(
        "UTF-8 was read as Latin-1 or Windows-1252 and saved again, once or more often. "
        "The tokenizer spends several tokens on each broken character, and the model learns to write them."
    ),
    source=["https://ftfy.readthedocs.io/en/latest/"],
    verdict="mend",
    screen=_LEAD.search,
    beyond_ascii=True,
    look=look,
    mend=_mended,
    hits=[{"answer": "The Mona Lisa doesnÃ¢â‚¬â„¢t have eyebrows."}, {"prompt": "schÃ¶n und grÃ¼n"}],
    misses=[{"answer": "schön und grün, “quoted”, 3 × 4 ÷ 2"}, {"answer": "Â"}, {"answer": "ЯНИ и Ñandú"}],
)
