"""A spreadsheet's error where a text should be."""

import re

from holdfast.book.kinds.data_check import DataCheck, RowView

_NAMES = (
    *("REF!", "N/A", "VALUE!", "NAME?", "DIV/0!", "NUM!", "NULL!", "SPILL!", "CALC!", "FIELD!", "ERROR!", "GETTING_DATA"),
    *(
        "BEZUG!",
        "NV",
        "WERT!",
        "ZAHL!",
        "VALEUR!",
        "NOM?",
        "NOMBRE!",
        "¡REF!",
        "¡VALOR!",
        "VALOR!",
        "¿NOMBRE?",
        "NOME?",
        "¡DIV/0!",
        "¡NUM!",
    ),
)
_ERROR = re.compile(rf"(?m)^[ \t]*(#(?:{'|'.join(map(re.escape, _NAMES))})|Err:5\d\d)[ \t\r]*$")


def _may_hold_one(text: str) -> bool:
    return ("#" in text or "Err:5" in text) and _ERROR.search(text) is not None


def error_in(name: str, text: str) -> str:
    """Say that the cell of this name holds an error and no text; "" where it does not."""
    found = _ERROR.fullmatch(text.strip())
    return f"a spreadsheet error stands in the cell of the {name}: {found[1]}" if found else ""


def look(row: RowView) -> str:
    last = row.prompt.rpartition("\n")[2]  # the cell that stands behind an instruction
    return error_in("prompt", row.prompt) or error_in("prompt", last) or error_in("answer", row.answer)


CARD = DataCheck(
    title="A spreadsheet error in the place of a text",
    why=(
        "A formula that could not be computed leaves #REF!, #N/A or #NAME? in its cell, and the export writes that as if it were text. "
        "A model would learn it as an answer. Mend the formula, save the values and export again."
    ),
    source=["https://docs.oasis-open.org/office/OpenDocument/v1.3/os/part4-formula/OpenDocument-v1.3-os-part4-formula.html"],
    verdict="reject",
    screen=_may_hold_one,
    look=look,
    hits=[
        {"prompt": "q", "answer": "#REF!"},
        {"prompt": "#N/A", "answer": "a"},
        {"prompt": "Sum it up\n#VALUE!", "answer": "a"},
        {"prompt": "q", "answer": " #NAME? "},
        {"prompt": "q", "answer": "#BEZUG!"},
        {"prompt": "q", "answer": "Err:502"},
    ],
    misses=[
        {"prompt": "What does #REF! mean?", "answer": "The cell is gone."},
        {"prompt": "q", "answer": "It shows #N/A"},
        {"answer": "#winning!"},
        {"prompt": "#N/A\nwhat is it?", "answer": "#N/A:\nno value"},
    ],
)
