"""A table in chunks, from CSV, Parquet or Arrow files: the wanted columns as texts (CSV) or as they are, with the rows' numbers."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.units import listed
from holdfast.data.files.stream import bare_suffix, open_stream, read_head

# columns of a chunk that no table has: the number of the line (of the row, in a file without lines), and a line of too many fields
LINE, RAGGED = "\0line", "\0ragged"
MOST_COLUMNS = 10_000
_LONGEST_HEADER = 1 << 24
_SHOWN = 12
_LONGEST_NAME = 80  # characters shown of one
_REFUSED = (pl.exceptions.PolarsError, pl.exceptions.PanicException)  # the second is none of Exception's: offsets beyond a file raise it
_BINARY: dict[str, Callable[[Path], pl.LazyFrame]] = {
    ".parquet": pl.scan_parquet,
    ".arrow": pl.scan_ipc,
    ".feather": pl.scan_ipc,
    ".ipc": pl.scan_ipc,
}


class TooWide(Stop):
    """A file with more columns than are read."""


@dataclass(frozen=True)
class Frames:
    """A file's columns, and its rows: `chunks(wanted, rows)` gives frames of at most so many rows with these columns, LINE and RAGGED."""

    file: Path
    names: tuple[str, ...]
    chunks: Callable[[list[str], int], Iterator[pl.DataFrame]]

    def shown(self) -> str:
        """Return the columns in words, only some where there are many."""
        return listed([name[:_LONGEST_NAME] for name in self.names], _SHOWN)


def open_frames(file: Path, most_columns: int = MOST_COLUMNS) -> Frames:
    """Look at the columns of a file. Raises Stop(1) where it has none, too many, or two of one name; OSError."""
    found = _binary(file) if bare_suffix(str(file)) in _BINARY else _csv(file)
    if len(found.names) > most_columns:
        text = f"{file} has {len(found.names):,} columns, {most_columns:,} at most are read"
        raise TooWide(BLOCKED, text, "a file written row by column? write it the other way round, or leave columns out")
    if twice := sorted({name for name in found.names if found.names.count(name) > 1} if len(set(found.names)) < len(found.names) else ()):
        raise Stop(BLOCKED, f"{file}: the header names {', '.join(twice[:_SHOWN])} more than once", "rename one of them")
    return found


def _csv(file: Path) -> Frames:
    head = read_head(str(file))
    with file.open("rb") as raw:
        header = open_stream(raw, head)[0].readline(_LONGEST_HEADER + 1)
    if len(header) > _LONGEST_HEADER:
        raise Stop(
            BLOCKED, f"{file}: its first line has more than {_LONGEST_HEADER >> 20} MiB and is no header", "give a table with a header"
        )
    if not header.strip():
        raise Stop(BLOCKED, f"{file} is empty or begins with an empty line", "its first line has to name the columns")
    text = header.decode("utf-8-sig", "replace").rstrip("\r\n")
    separator = max(",\t;|", key=re.sub('"[^"]*"', "", text).count)
    names = tuple(name.strip().strip('"') for name in _fields(text, separator))

    def chunks(wanted: list[str], rows: int) -> Iterator[pl.DataFrame]:
        number = 2
        with file.open("rb") as raw:
            handle, guarded = open_stream(raw, head)
            handle.readline()
            while lines := list(islice(handle, rows)):
                yield _frame(lines, names, separator, wanted, number)
                number += len(lines)
        if guarded.damage:
            raise Stop(BLOCKED, f"{file} is damaged behind line {number - 1:,}: {guarded.damage}", "copy or download it again")

    return Frames(file, names, chunks)


def _frame(lines: list[bytes], names: tuple[str, ...], separator: str, wanted: list[str], first: int) -> pl.DataFrame:
    """Return the wanted columns of these lines as texts; blank lines are no rows."""
    empty = not all(map(bytes.strip, lines))
    text = b"".join([line for line in lines if line.strip()] if empty else lines)
    if not text:
        return pl.DataFrame(schema={**dict.fromkeys(wanted, pl.String), LINE: pl.Int64, RAGGED: pl.String})
    # polars takes the number of columns from the first line, which may be a short one
    full = separator.encode() * (len(names) - 1) + b"\n" if len(names) > 1 else b""
    told = f"lines {first:,} to {first + len(lines) - 1:,}"
    try:
        frame = pl.read_csv(
            io.BytesIO(full + text),
            has_header=False,
            schema=dict.fromkeys(names, pl.String),
            separator=separator,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
            quote_char='"' if b'"' in text else None,
        )[bool(full) :]
    except _REFUSED as error:
        raise Stop(BLOCKED, f"{told} cannot be read as CSV: {_told(error)}", "look for a quote that is not closed") from None
    numbers = [first + at for at in range(len(lines)) if lines[at].strip()] if empty else range(first, first + len(lines))
    if len(frame) != len(numbers):
        raise Stop(
            BLOCKED,
            f"{told} hold {len(frame):,} rows: a field has a line break in quotes",
            "write the table as Parquet, or take line breaks out of its fields",
        )
    ragged = [_if_ragged(line, separator, len(names)) for line in lines if not empty or line.strip()]
    return frame.select(wanted).with_columns(pl.Series(LINE, numbers, pl.Int64), pl.Series(RAGGED, ragged, pl.String))


def _if_ragged(line: bytes, separator: str, most: int) -> str | None:
    """Return the line where it has more fields than `most`; a separator in quotes parts none."""
    if line.count(separator.encode()) < most:
        return None
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    return text if b'"' not in line or len(_fields(text, separator)) > most else None


def _fields(line: str, separator: str) -> list[str]:
    """Split a line at its separators, those in quotes left out."""
    try:
        return next(csv.reader([line], delimiter=separator)) if '"' in line else line.split(separator)
    except csv.Error:  # a field of more than 128 KiB
        return line.split(separator)


def _binary(file: Path) -> Frames:
    try:
        scanned = _BINARY[bare_suffix(str(file))](file)
        schema = scanned.collect_schema()
    except (*_REFUSED, OSError) as error:
        raise Stop(BLOCKED, f"{file} cannot be read as a table: {_told(error)}", "write it again") from None

    def chunks(wanted: list[str], rows: int) -> Iterator[pl.DataFrame]:
        first = 0
        while True:
            try:
                frame = scanned.select(wanted).slice(first, rows).collect()
            except (*_REFUSED, OSError) as error:
                raise Stop(BLOCKED, f"{file} is damaged behind row {first:,}: {_told(error)}", "write it again") from None
            if not len(frame):
                return
            numbers = range(first + 1, first + 1 + len(frame))
            yield frame.with_columns(pl.Series(LINE, numbers, pl.Int64), pl.lit(None, pl.String).alias(RAGGED))
            first += len(frame)

    return Frames(file, tuple(schema.names()), chunks)


def _told(error: BaseException) -> str:
    """Return the first line of what polars says; behind it comes the data."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def as_text(values: pl.Series) -> pl.Series:
    """Convert a column to texts: times to ISO 8601, others as they are written. Raises Stop(1) for one of lists or objects."""
    if values.dtype == pl.String:
        return values
    if values.dtype.is_nested() or values.dtype == pl.Object:
        text = f"the column {values.name} holds lists or objects ({values.dtype}), and neither numbers nor names"
        raise Stop(BLOCKED, text, "write each of its parts as a column, or leave it out with table.ignore")
    return values.dt.to_string("iso:strict") if isinstance(values.dtype, pl.Datetime) else values.cast(pl.String)
