"""A conversation ends with a question."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    roles = [turn.role for turn in row.turns]
    if roles[-1] == "assistant" or "assistant" not in roles:
        return ""
    left = roles[::-1].index("assistant")
    return (
        f"the last {left} turns ({roles[-1]}) are answered by nobody" if left > 1 else f"the last turn ({roles[-1]}) is answered by nobody"
    )


CARD = DataCheck(
    title="A conversation ends without an answer",
    why="What stands behind the last answer is not trained on. Often the answer was lost, or the export stopped in the middle.",
    source=["https://huggingface.co/docs/transformers/chat_templating"],
    verdict="note",
    conversations_only=True,
    look=look,
    hits=[{"turns": [("user", "q"), ("assistant", "a"), ("user", "thanks")]}],
    misses=[{"turns": [("user", "q"), ("assistant", "a")]}, {"turns": [("user", "q"), ("assistant", "", True)]}],
)
