"""Far more tokens than the text has characters for, or far fewer."""

from holdfast.core.datacheck import DataCheck, RowView

_ENOUGH = 64  # tokens that tell something
_FEWEST, _MOST = 0.5, 16.0  # characters to a token


def look(row: RowView) -> str:
    if row.tokens is None or row.tokens < _ENOUGH:
        return ""
    share = len(row.text) / row.tokens
    return "" if _FEWEST <= share <= _MOST else f"{share:.2f} characters to a token ({row.tokens:,} tokens)"


CARD = DataCheck(
    title="Extreme characters per token",
    why=(
        "Less than half a character to a token means that the tokenizer does not know this script or that the text is damaged. "
        "Very many mean endless white space or dashes."
    ),
    source=["https://arxiv.org/abs/2305.15425"],
    verdict="note",
    look=look,
    hits=[{"answer": "᚛᚛᚛" * 30, "tokens": 270}, {"answer": "-" * 4000, "tokens": 100}],
    misses=[{"answer": "word " * 100, "tokens": 110}, {"answer": "-" * 400, "tokens": 10}, {"answer": "x"}],
)
