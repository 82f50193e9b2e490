"""How a file of rows is written: told by its first bytes, then by its name. Reads no rows."""

from __future__ import annotations

import re
from typing import NamedTuple

import orjson

from holdfast.data.files.stream import FileHead, bare_suffix, read_head

_SUFFIX_FORMS = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet", ".arrow": "arrow", ".txt": "text", ".md": "text"}
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_NO_ROWS = {  # (what a file is that holds no rows at all)
    b"PK\x03\x04": "a zip archive: unpack it, and name the files in it",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "a document of an older Office program, as .xls files are: save its sheet as CSV (UTF-8)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive: unpack it, and name the files in it",
    b"Rar!": "a RAR archive: unpack it, and name the files in it",
    b"\xfd7zXZ": "compressed with xz: unpack it with unxz",
    b"\x93NUMPY": "a numpy array",
    b"\x7fELF": "a program",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"%PDF-": "a PDF document",
    b"\x80\x02": "a pickle",
    b"\x80\x04": "a pickle",
    b"GGUF": "a GGUF model",
    b"SQLite format 3": "an SQLite database",
}
_TAR_AT = 257  # where the name of the format stands in the head of its first member
_IN_ZIP = {  # (what a zip archive is by the names in it)
    b"xl/": "an Excel workbook: save its sheet as CSV (UTF-8)",
    b"application/vnd.oasis.opendocument.spreadsheet": "a LibreOffice spreadsheet: save its sheet as CSV (UTF-8)",
    b"Index/Tables": "a Numbers spreadsheet: export it as CSV (UTF-8)",
    b"word/": "a Word document: save its text as a file of plain text",
    b"application/vnd.oasis.opendocument.text": "a LibreOffice document: save its text as a file of plain text",
    b"application/epub": "an e-book: take its text out",
    b"/data.pkl": "a checkpoint of torch, which holds no rows",
    b".npy": "an archive of numpy arrays",
}
LISTS = (  # what people call a list of rows
    *("data", "rows", "records", "items", "examples", "samples", "instances", "entries", "dataset", "results", "train", "training"),
    *("test", "testing", "eval", "evaluation", "validation", "valid", "dev", "val"),
)
_RECORDS = re.compile(
    rb'\s*\{(?:\s*"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[\w.+-]+)\s*,)*'
    rb'\s*"(data|rows|records|items|examples|samples|instances|entries|dataset|train|training|test|testing|eval|evaluation|validation|valid|dev'
    rb'|val|results)"\s*:\s*\[(?=\s*\{\s*"([^"]*)")'
)  # one object whose field holds all rows
_LOOKED_AT = 3  # lines
_COLUMNS = frozenset(
    [
        "instruction",
        "input",
        "output",
        "prompt",
        "completion",
        "question",
        "answer",
        "response",
        "context",
        "query",
        "problem",
        "solution",
        "text",
        "user",
        "assistant",
        "human",
        "chosen",
        "rejected",
        "system",
        "label",
        "target",
        "source",
        "frage",
        "antwort",
        "aufgabe",
        "lösung",
        "pregunta",
        "respuesta",
        "pergunta",
        "resposta",
        "domanda",
        "risposta",
        "réponse",
        "vraag",
        "antwoord",
        "вопрос",
        "ответ",
        "питання",
        "відповідь",
        "问题",
        "回答",
        "答案",
        "質問",
        "질문",
        "답변",
    ]
)  # what people call the columns of rows
_OF_TURNS = (b"role", b"from", b"content", b"value", b"type", b"text")  # what turns and parts begin with


class FileForm(NamedTuple):
    """How a file is written: lines, array, values, records (the array in a field of one object), csv, text, parquet, arrow, or none
    (`what` then says what it is)."""

    kind: str
    head: FileHead
    what: str = ""

    @property
    def words(self) -> str:
        names = {
            "lines": "JSON Lines",
            "array": "a JSON array",
            "values": "JSON objects one after the other",
            "records": "one JSON object of many rows",
            "text": "plain text",
        }
        undone = [self.head.compression, self.head.encoding.removesuffix("-sig").upper() if self.head.encoding != "utf-8-sig" else ""]
        return ", ".join([names.get(self.kind, self.kind), *filter(None, undone)])


def form_of(file: str) -> FileForm:
    """Return the form in which `file` is written, by its first bytes, then by its name. Raises Stop(1) for what cannot be opened."""
    head = read_head(file)
    for magic, kind in _MAGIC.items():
        if head.text.startswith(magic) and not head.compression:
            return FileForm(kind, head)
    if head.text[_TAR_AT:].startswith(b"ustar"):
        return FileForm("none", head, "a tar archive: unpack it, and name the files in it")
    for magic, what in _NO_ROWS.items():
        if head.text.startswith(magic):
            inside = (said for name, said in _IN_ZIP.items() if what.startswith("a zip") and name in head.text)
            return FileForm("none", head, next(inside, what))
    kind = _SUFFIX_FORMS.get(bare_suffix(file), "")
    if kind in ("parquet", "arrow"):
        return FileForm(kind, head)
    if kind == "text" and _is_table(head):
        return FileForm("csv", head)
    if kind and not _first_line_is_an_object(head.text):
        return FileForm(kind, head)
    return FileForm(_json_kind(head.text), head)


def _is_table(head: FileHead) -> bool:
    """Return whether a text is a table with tabs, as Excel saves "Text" and "Unicode text": a header, and as many tabs in the lines below.

    UTF-16 is what Excel writes there; in any other text the header must have names of rows.
    """
    lines = [line.rstrip(b"\r") for line in head.text.split(b"\n")[:_LOOKED_AT] if line.strip()]
    names = [name.strip().strip(b'"').lower() for name in lines[0].split(b"\t")] if lines else []
    if len(names) < 2 or len(lines) < 2 or not all(names) or len(set(names)) < len(names) or b"\t" not in lines[1]:
        return False
    if head.encoding.startswith("utf-16"):
        return True
    return sum(name.decode("utf-8", "replace") in _COLUMNS for name in names) > 1


def _first_line_is_an_object(text: bytes) -> bool:
    try:
        return isinstance(orjson.loads(text.lstrip().split(b"\n", 1)[0]), dict)
    except orjson.JSONDecodeError:
        return False


def _json_kind(head: bytes) -> str:
    """Tell apart one array, objects over several lines, and one row a line. Rows may be arrays themselves: those end with their lines."""
    text = head.lstrip()
    first_line = text.split(b"\n", 1)[0].strip()
    if text.startswith(b"["):
        alone = not first_line.endswith(b"]") or b"\n" not in text.rstrip() or first_line == b"[]"
        return "array" if alone else "lines"
    if records_begin(text)[0]:
        return "records"
    pretty = first_line.endswith((b"{", b"[", b",")) and first_line.startswith(b"{") and b"\n" in text
    return "values" if pretty and text.split(b"\n", 2)[1][:1] in (b" ", b"\t", b'"', b"\r") else "lines"


def records_begin(text: bytes) -> tuple[int, str]:
    """Find the first list of rows in one object of lists: return the place behind its bracket, and its name; 0 where there is none."""
    found = _RECORDS.match(text)
    if not found or found[2].lower() in _OF_TURNS:
        return 0, ""
    first_line, _, behind = text.strip().partition(b"\n")
    several = bool(behind.strip()) and first_line.rstrip().endswith(b"}") and _first_line_is_an_object(text)
    return (0, "") if several else (found.end(), found[1].decode())
