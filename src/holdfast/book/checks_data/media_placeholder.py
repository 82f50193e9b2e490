"""A text stands for an image, a video or a sound that a language model is not given."""

import re

from holdfast.book.kinds.data_check import DataCheck, RowView

_PLACEHOLDER = re.compile(r"<\|?(?:image|img|video|audio)(?:_pad|_token|_soft_token|_bos)?\|?>|<ImageHere>|<__(?:media|dj__image)__>")


def look(row: RowView) -> str:
    found = _PLACEHOLDER.search(row.prompt)
    return f"{found[0]} stands in the question for what only a model with eyes or ears is given" if found else ""


CARD = DataCheck(
    title="The question is about an image, a video or a sound",
    why=(
        "Rows for vision and audio models hold a placeholder where their image goes. A language model reads the placeholder as text and "
        "learns to describe what it was never shown."
    ),
    source=["https://github.com/haotian-liu/LLaVA/blob/main/docs/Finetune_Custom_Data.md"],
    verdict="note",
    screen=_PLACEHOLDER.search,
    look=look,
    hits=[
        {"prompt": "<image>\nWhat is in the picture?", "answer": "A cat."},
        {"prompt": "Listen: <|audio|> Who speaks?", "answer": "A woman."},
        {"prompt": "<|image_pad|>Read it.", "answer": "12"},
    ],
    misses=[
        {"prompt": "How is an image shown in HTML?", "answer": "With <img src='a.png'> or <video>."},
        {"prompt": "What does <img src='a.png'> do?", "answer": "It shows a.png."},
    ],
)
