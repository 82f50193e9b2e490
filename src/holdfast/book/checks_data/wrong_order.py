"""Turns stand in an order no chat has."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    before = ""
    for number, turn in enumerate(row.turns):
        if turn.role == "assistant" and before in ("", "system"):
            return f"turn {number} is the assistant's and answers nothing"
        if turn.role == "assistant" and before == "assistant":
            return f"turns {number - 1} and {number} are both the assistant's"
        if turn.role == "system" and number:
            return f"turn {number} is the system's, which can only come first"
        before = turn.role if not turn.calls else "tool calls"
    return ""


CARD = DataCheck(
    title="The turns of a conversation are out of order",
    why=(
        "An answer without a question before it is learned from nothing. "
        "Chat templates refuse such turns, or write them where the model never sees them in use."
    ),
    source=["https://huggingface.co/docs/transformers/chat_templating"],
    verdict="reject",
    conversations_only=True,
    look=look,
    hits=[
        {"turns": [("assistant", "hi"), ("user", "hello")]},
        {"turns": [("user", "q"), ("assistant", "a"), ("assistant", "b")]},
        {"turns": [("user", "q"), ("system", "s"), ("assistant", "a")]},
    ],
    misses=[
        {"turns": [("system", "s"), ("user", "q"), ("assistant", "a")]},
        {"turns": [("user", "q"), ("assistant", "", True), ("tool", "1"), ("assistant", "a")]},
        {"turns": [("user", "q"), ("user", "and?"), ("assistant", "a")]},
        {"prompt": "q", "answer": "a"},
    ],
)
