"""The whole answer is a word for a missing one."""

from holdfast.book.kinds.data_check import Columns, DataCheck, RowView

_PLACEHOLDERS = frozenset(
    (
        *("n/a", "n.a", "nan", "<na>", "none", "null", "undefined", "todo", "tbd", "-", "--", "---", "–", "—", "...", "…"),
        *("<no output>", "<nooutput>", "<no input>", "<noinput>"),
    )
)
_TAIL = 24  # characters: the longest of them, and the end of the line before it


def _is_one(said: str) -> bool:
    said = said.strip().lower()
    return said in _PLACEHOLDERS or said.rstrip(".") in _PLACEHOLDERS


def sift(rows: Columns) -> list[int]:
    return [at for at, answer in enumerate(rows.answers) if _is_one(answer[-_TAIL:].rstrip().rpartition("\n")[2])]


def look(row: RowView) -> str:
    last = next((turn for turn in reversed(row.turns) if turn.role == "assistant"), None)
    said = last.content if last else row.answer
    return f"the whole answer is {said.strip()!r}" if row.prompt and not (last and last.calls) and _is_one(said) else ""


CARD = DataCheck(
    title="The answer stands for a missing one",
    why=(
        "N/A, null, TODO or a dash is what a form, a database or a generator leaves where nobody answered, and a model learns it as an "
        "answer. Where it is one, as none among the classes of a text, nothing is wrong. Of a conversation the last answer is seen."
    ),
    source=["https://github.com/gururise/AlpacaDataCleaned"],
    verdict="note",
    sift=sift,
    look=look,
    hits=[
        {"prompt": "q", "answer": "N/A"},
        {"prompt": "q", "answer": " n/a.\n"},
        {"prompt": "q", "answer": "TODO"},
        {"prompt": "q", "answer": "null"},
        {"prompt": "q", "answer": "..."},
        {"prompt": "q", "answer": "—"},
        {"prompt": "q", "answer": "<noinput>"},
        {"prompt": "q\nq", "answer": "It is.\ntbd", "turns": [("user", "q"), ("assistant", "It is."), ("user", "q"), ("assistant", "tbd")]},
    ],
    misses=[
        {"prompt": "q", "answer": "There are none"},
        {"prompt": "q", "answer": "the keys\nnull"},
        {"prompt": "q", "answer": "Na"},
        {"prompt": "q", "answer": "0"},
        {"prompt": "q", "answer": "TODO: buy milk"},
        {"prompt": "q", "answer": "no"},
        {"prompt": "", "answer": "-"},
        {"prompt": "q", "answer": "-", "turns": [("user", "q"), ("assistant", "-", True)]},
    ],
)
