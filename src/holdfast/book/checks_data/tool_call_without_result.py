"""A tool is called and the conversation goes on without its result."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    for number, (turn, after) in enumerate(zip(row.turns, row.turns[1:], strict=False)):
        if turn.calls and after.role != "tool":
            return f"turn {number} calls a tool, turn {number + 1} is the {after.role}'s and no result"
    return ""


CARD = DataCheck(
    title="A tool call has no result",
    why=(
        "The answer behind such a call states a result nobody gave, so the model learns to invent results. "
        "A call that ends the conversation is complete."
    ),
    source=["https://huggingface.co/docs/transformers/chat_extras"],
    verdict="reject",
    conversations_only=True,
    look=look,
    hits=[{"turns": [("user", "q"), ("assistant", "", True), ("user", "well?"), ("assistant", "42")]}],
    misses=[{"turns": [("user", "q"), ("assistant", "", True)]}, {"turns": [("user", "q"), ("assistant", "", True), ("tool", "42")]}],
)
