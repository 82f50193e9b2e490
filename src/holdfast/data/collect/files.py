"""Records from files: request logs, llama.cpp server logs, shell histories; which of them a file is. Writes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.base.errors import USAGE, Stop
from holdfast.data.collect import history, llamalog
from holdfast.data.collect.pairs import record_of
from holdfast.data.collect.record import Record, Unusable, WriteBatch
from holdfast.data.files.raw_row import Reject
from holdfast.data.files.read import read_rows, with_all_digits
from holdfast.data.files.stream import open_stream, read_head

_AT_ONCE = 1024
KINDS = ("requests", "llama-server", "shell")


def kind_of(file: str) -> str:
    """Return the kind of a file, by its first bytes and its name."""
    head = read_head(file).text.decode("utf-8", "replace")
    if llamalog.is_log(head):
        return "llama-server"
    return "shell" if history.is_history(Path(file), head) else "requests"


def batches_of(file: str, kind: str, shell_allowed: bool) -> Iterator[WriteBatch]:
    """Yield the records of `file` in batches. Raises Stop(2) for a shell history that may not be read without leave."""
    if kind == "shell" and not shell_allowed:
        raise Stop(
            USAGE,
            f"{file} is a shell history: what somebody typed, perhaps passwords",
            "if it is yours to give, say so with --shell-history",
        )
    return _batches({"requests": _requests, "llama-server": _server_log, "shell": _history}[kind](file))


def _batches(records: Iterator[Record | Unusable]) -> Iterator[WriteBatch]:
    while some := list(itertools.islice(records, _AT_ONCE)):
        yield WriteBatch(some)


def _requests(file: str) -> Iterator[Record | Unusable]:
    for row in read_rows(file):
        raw = row.raw.decode("utf-8", "replace")
        if isinstance(row, Reject):
            yield Unusable(f"{file}:{row.source.line}", raw, row.reason, row.detail)
        else:
            yield record_of(with_all_digits(row.raw, row.value), f"{file}:{row.source.line}", raw, "requests")


def _server_log(file: str) -> Iterator[Record | Unusable]:
    return llamalog.records(_lines(file), file)


def _history(file: str) -> Iterator[Record | Unusable]:
    with open(file, "rb") as handle:
        return history.records(history.text_of(handle.read()), file)


def _lines(file: str) -> Iterable[tuple[int, str]]:
    with open(file, "rb") as handle:
        stream, _ = open_stream(handle, read_head(file))
        for number, line in enumerate(stream, 1):
            yield number, line.decode("utf-8", "replace").rstrip("\r\n")
