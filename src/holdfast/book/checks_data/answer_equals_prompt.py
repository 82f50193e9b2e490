"""The answer is the prompt again."""

from holdfast.book.kinds.data_check import Columns, DataCheck, RowView


def sift(rows: Columns) -> list[int]:
    """Return the rows where both begin with the same character, or one of them with white space."""
    pairs = enumerate(zip(rows.prompts, rows.answers, strict=True))
    return [at for at, (one, two) in pairs if one[:1] == two[:1] or one[:1].isspace() or two[:1].isspace()]


def look(row: RowView) -> str:
    begins_alike = row.answer.lstrip()[:4] == row.prompt.lstrip()[:4]
    return "the answer repeats the whole prompt" if begins_alike and row.prompt and row.answer.split() == row.prompt.split() else ""


CARD = DataCheck(
    title="The answer repeats the prompt",
    why="A row whose answer is its prompt teaches a model to echo. It comes from a column that was exported twice.",
    source=["https://arxiv.org/abs/2307.08701"],
    verdict="reject",
    sift=sift,
    look=look,
    hits=[{"prompt": "Say hello", "answer": "Say hello"}, {"prompt": "Sort the list", "answer": "Sort  the list\n"}],
    misses=[{"prompt": "Say hello", "answer": "hello"}, {"prompt": "", "answer": "a text to learn"}],
)
