"""The user speaks twice in a row."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    pairs = enumerate(zip(row.turns, row.turns[1:], strict=False))
    at = next((number for number, (one, two) in pairs if one.role == two.role == "user"), None)
    return "" if at is None else f"turns {at} and {at + 1} are both the user's"


CARD = DataCheck(
    title="Two turns of the user follow each other",
    why="Some chat templates refuse this, others join the turns. Often an answer between them was lost.",
    source=["https://huggingface.co/docs/transformers/chat_templating"],
    verdict="note",
    conversations_only=True,
    look=look,
    hits=[{"turns": [("user", "q"), ("user", "and?"), ("assistant", "a")]}],
    misses=[{"turns": [("user", "q"), ("assistant", "a"), ("user", "and?"), ("assistant", "a")]}],
)
