"""A turn inside of a conversation is empty."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    for number, turn in enumerate(row.turns):
        if turn.role in ("user", "assistant") and not turn.calls and not turn.content.strip():
            return f"turn {number} ({turn.role}) is empty"
    return ""


CARD = DataCheck(
    title="A turn of a conversation is empty",
    why=("An empty answer among others teaches the model to end its turn at once. It is what exports leave where an answer was lost."),
    source=["https://github.com/axolotl-ai-cloud/axolotl/blob/main/docs/dataset-formats/conversation.qmd"],
    verdict="reject",
    conversations_only=True,
    look=look,
    hits=[{"turns": [("user", "q"), ("assistant", " "), ("user", "q"), ("assistant", "a")]}],
    misses=[{"turns": [("user", "q"), ("assistant", "", True)]}, {"turns": [("system", ""), ("user", "q"), ("assistant", "a")]}],
)
