"""The answer is the prompt again."""

from holdfast.core.datacheck import DataCheck, RowView


def look(row: RowView) -> str:
    begins_alike = row.answer.lstrip()[:4] == row.prompt.lstrip()[:4]
    return "the answer repeats the whole prompt" if begins_alike and row.prompt and row.answer.split() == row.prompt.split() else ""


CARD = DataCheck(
    title="The answer repeats the prompt",
    why="A row whose answer is its prompt teaches a model to echo. It comes from a column that was exported twice.",
    source=["https://arxiv.org/abs/2307.08701"],
    verdict="reject",
    look=look,
    hits=[{"prompt": "Say hello", "answer": "Say hello"}, {"prompt": "Sort the list", "answer": "Sort  the list\n"}],
    misses=[{"prompt": "Say hello", "answer": "hello"}, {"prompt": "", "answer": "a text to learn"}],
)
