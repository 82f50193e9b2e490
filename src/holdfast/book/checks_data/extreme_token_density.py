"""Far more tokens than the text has characters for, or far fewer."""

from holdfast.book.kinds.data_check import Columns, DataCheck, RowView

_ENOUGH = 64  # tokens that tell something
_FEWEST, _MOST = 0.5, 16.0  # characters to a token


def _share(prompt: str, answer: str, tokens: int) -> float:
    return (len(prompt) + len("\n") + len(answer)) / tokens


def sift(rows: Columns) -> list[int]:
    counted = enumerate(zip(rows.prompts, rows.answers, rows.tokens, strict=True))
    enough = ((at, _share(one, two, tokens)) for at, (one, two, tokens) in counted if tokens is not None and tokens >= _ENOUGH)
    return [at for at, share in enough if not _FEWEST <= share <= _MOST]


def look(row: RowView) -> str:
    assert row.tokens is not None
    return f"{_share(row.prompt, row.answer, row.tokens):.2f} characters to a token ({row.tokens:,} tokens)"


CARD = DataCheck(
    title="Extreme characters per token",
    why=(
        "Less than half a character to a token means that the tokenizer does not know this script or that the text is damaged. "
        "Very many mean endless white space or dashes."
    ),
    source=["https://arxiv.org/abs/2305.15425"],
    verdict="note",
    sift=sift,
    look=look,
    hits=[{"answer": "᚛᚛᚛" * 30, "tokens": 270}, {"answer": "-" * 4000, "tokens": 100}],
    misses=[{"answer": "word " * 100, "tokens": 110}, {"answer": "-" * 400, "tokens": 10}, {"answer": "x"}],
)
