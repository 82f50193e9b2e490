"""Both answers of a pair are the same."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    if row.turns and row.turns[-1].calls:
        return ""  # what is called may differ
    better = row.turns[-1].content if row.turns else row.answer
    return "chosen and rejected are the same answer" if row.worse and row.worse.split() == better.split() else ""


CARD = DataCheck(
    title="Both answers are the same",
    why="A pair whose answers are the same prefers nothing: its gradient is zero, and its margin pulls the mean towards zero.",
    source=["https://arxiv.org/abs/2305.18290"],
    verdict="reject",
    look=look,
    pairs_only=True,
    hits=[{"prompt": "Say hello", "answer": "hello", "worse": "hello"}],
    misses=[{"prompt": "Say hello", "answer": "hello", "worse": "go away"}, {"prompt": "Say hello", "answer": "hello"}],
)
