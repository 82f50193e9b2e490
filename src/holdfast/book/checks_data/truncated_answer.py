"""A long answer that stops in the middle."""

import re

from holdfast.book.kinds.data_check import Columns, DataCheck, RowView

_OPEN_END = re.compile(r"(?:[,(\[{]|\b(?:and|or|the|a|an|of|to|with|for|in|is|are|that|which|because))\s*\Z")
_ENDED = re.compile(r"[.!?`)\]}。！？]\s*\Z")
_SHORTEST = 200  # characters of an answer that is expected to be prose


def sift(rows: Columns) -> list[int]:
    return [at for at, answer in enumerate(rows.answers) if len(answer) >= _SHORTEST or "```" in answer or "<think>" in answer]


def look(row: RowView) -> str:
    if "```" in row.answer and row.answer.count("```") % 2 and not _ENDED.search(row.answer[-40:]):
        return "the last code fence is not closed"
    if row.answer.count("<think>") > row.answer.count("</think>"):
        return "<think> is opened and not closed: the answer itself is not there"
    found = _OPEN_END.search(row.answer[-40:]) if len(row.answer) >= _SHORTEST else None
    return f"the answer ends with {found[0].strip()!r}" if found else ""


CARD = DataCheck(
    title="The answer looks cut off",
    why=("Answers that were generated with a token limit stop in the middle of a sentence. A model that learns them learns to stop there."),
    source=["https://arxiv.org/abs/2305.11206"],
    verdict="note",
    sift=sift,
    look=look,
    hits=[
        {"answer": "It is a long story " * 20 + "and then the"},
        {"answer": "```python\nprint(1)\nx ="},
        {"answer": "<think>It may be"},
    ],
    misses=[
        {"answer": "It is a long story. " * 20},
        {"answer": "what for"},
        {"answer": "<think>It is.</think>Yes"},
        {"answer": "```\nx\n```"},
        {"answer": "Put ``` around it."},
        {"answer": "ls -la ("},
    ],
)
