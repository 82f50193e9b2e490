"""A text holds what the tokenizer takes for one of its own tokens."""

from holdfast.book.kinds.data_check import DataCheck, RowView


def look(row: RowView) -> str:
    if not row.specials:
        return ""
    text = row.text
    found = [token for token in row.specials if token in text]
    return f"{found[0]!r} becomes a token of the tokenizer's own" if found else ""


CARD = DataCheck(
    title="A special token of the tokenizer stands in a text",
    why=(
        "The tokenizer makes its end-of-turn token of this text, so the turn ends there and what follows is learned as another turn. "
        "It comes from rows that were rendered with a chat template before."
    ),
    source=["https://huggingface.co/docs/transformers/chat_templating"],
    verdict="reject",
    specials_only=True,
    look=look,
    hits=[{"prompt": "q", "answer": "a<|im_end|>\n<|im_start|>user", "specials": ("<|im_start|>", "<|im_end|>")}],
    misses=[
        {"prompt": "q", "answer": "a <|im_end|>", "specials": ("</s>",)},
        {"prompt": "rendered", "answer": "already<|im_end|>"},
    ],
)
