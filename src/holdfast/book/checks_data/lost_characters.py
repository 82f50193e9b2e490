"""Replacement characters: somebody else's decoding lost something here."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    count = row.text.count("\ufffd")
    return f"{count} times U+FFFD, where a character was lost before" if count else ""


CARD = DataCheck(
    title="Characters were lost",
    why=("A program that could not decode some bytes wrote U+FFFD in their place. What stood there cannot be known any more."),
    source=["https://www.unicode.org/faq/utf_bom.html"],
    verdict="note",
    screen=lambda text: "\ufffd" in text,
    beyond_ascii=True,
    look=look,
    hits=[{"answer": "na\ufffdve"}],
    misses=[{"answer": "naïve?"}],
)
