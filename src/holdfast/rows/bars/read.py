"""Bars of a CSV or Parquet file, a chunk at a time, every value a text; and the columns they are taken from. Judges no bar."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl

from holdfast.core.errors import BLOCKED, Stop
from holdfast.rows.files.stream import open_stream, read_head

_NAMES = {
    "timestamp": ("timestamp", "time", "datetime", "date_time", "ts", "ts_event", "date"),
    "open": ("open", "o"),
    "high": ("high", "h"),
    "low": ("low", "l"),
    "close": ("close", "c"),
    "volume": ("volume", "vol", "v"),
}
_CONTRACT = ("contract", "symbol", "instrument", "ticker")
_MOST_COLUMNS = 1000
_LONGEST_HEADER = 1 << 16
LINE = "line"  # the column of a chunk that has the number of the line, or of the row of a Parquet file


@dataclass(frozen=True)
class Layout:
    """Which column of a file is what. keep: columns that are carried along as they are."""

    columns: dict[str, str]
    contract: str | None
    keep: tuple[str, ...]

    @property
    def wanted(self) -> list[str]:
        return list(dict.fromkeys([*self.columns.values(), *([self.contract] if self.contract else []), *self.keep]))


def layout_of(file: Path, names: list[str], keep: list[str]) -> Layout:
    """Find the columns of a file by their names, in any case. Raises Stop naming what is missing and what is there."""
    by_name = {name.strip().lower(): name for name in reversed(names)}
    found = {what: next((by_name[name] for name in known if name in by_name), None) for what, known in _NAMES.items()}
    missing = [what for what, name in found.items() if name is None] + [name for name in keep if name not in names]
    if missing:
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12:,} more" if len(names) > 12 else "")
        raise Stop(
            BLOCKED, f"{file} has no column {', '.join(missing)}; it has {shown}", "bars are timestamp, open, high, low, close, volume"
        )
    contract = next((by_name[name] for name in _CONTRACT if name in by_name), None)
    return Layout({what: name for what, name in found.items() if name is not None}, contract, tuple(keep))


def read_chunks(file: Path, keep: list[str], bars: int) -> tuple[Layout, Iterator[pl.DataFrame]]:
    """(the columns, the file's rows in chunks of at most `bars`): texts as they stand there, and their lines. Raises Stop, OSError."""
    return _parquet(file, keep, bars) if file.suffix.lower() == ".parquet" else _csv(file, keep, bars)


def _csv(file: Path, keep: list[str], bars: int) -> tuple[Layout, Iterator[pl.DataFrame]]:
    head = read_head(str(file))
    with file.open("rb") as raw:
        header = open_stream(raw, head)[0].readline(_LONGEST_HEADER + 1)
    if len(header) > _LONGEST_HEADER or header.count(b",") >= _MOST_COLUMNS:
        raise Stop(BLOCKED, f"{file}: its first line is no header of bars: more than {_MOST_COLUMNS:,} columns", "give a file of bars")
    if not header.strip():
        raise Stop(BLOCKED, f"{file} is empty or begins with an empty line", "its first line has to name the columns")
    text = header.decode("utf-8-sig", "replace").strip()
    separator = max(",\t;|", key=text.count)
    names = [name.strip().strip('"') for name in text.split(separator)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Stop(BLOCKED, f"{file}: the header names {', '.join(twice)} more than once", "rename one of them")
    layout = layout_of(file, names, keep)

    def chunks() -> Iterator[pl.DataFrame]:
        number = 2
        with file.open("rb") as raw:
            handle, guarded = open_stream(raw, head)
            handle.readline()
            while lines := list(islice(handle, bars)):
                yield _frame(lines, names, separator, layout, number)
                number += len(lines)
        if guarded.damage:
            raise Stop(BLOCKED, f"{file} is damaged behind line {number - 1:,}: {guarded.damage}", "copy or download it again")

    return layout, chunks()


def _frame(lines: list[bytes], names: list[str], separator: str, layout: Layout, first: int) -> pl.DataFrame:
    """The wanted columns of these lines; blank lines are no rows."""
    empty = [at for at, line in enumerate(lines) if not line.strip()]
    text = b"".join(lines if not empty else [line for line in lines if line.strip()])
    if not text:
        return pl.DataFrame(schema={**dict.fromkeys(layout.wanted, pl.String), LINE: pl.Int64})
    frame = pl.read_csv(
        io.BytesIO(text),
        has_header=False,
        new_columns=names,
        schema_overrides=[pl.String] * len(names),
        infer_schema=False,
        separator=separator,
        truncate_ragged_lines=True,
        encoding="utf8-lossy",
        quote_char='"' if b'"' in text else None,
    )
    missing = [pl.lit(None, pl.String).alias(name) for name in layout.wanted if name not in frame.columns]
    numbers = [first + at for at in range(len(lines)) if lines[at].strip()] if empty else range(first, first + len(lines))
    return frame.with_columns(missing).select(layout.wanted).with_columns(pl.Series(LINE, numbers, pl.Int64))


def _parquet(file: Path, keep: list[str], bars: int) -> tuple[Layout, Iterator[pl.DataFrame]]:
    try:
        scanned = pl.scan_parquet(file)
        schema = scanned.collect_schema()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise Stop(BLOCKED, f"{file} cannot be read as Parquet: {str(error).splitlines()[0]}", "write it again") from None
    layout = layout_of(file, schema.names(), keep)

    def chunks() -> Iterator[pl.DataFrame]:
        first = 0
        while True:
            frame = scanned.select(layout.wanted).slice(first, bars).collect()
            if not len(frame):
                return
            numbers = pl.Series(LINE, range(first + 1, first + 1 + len(frame)), pl.Int64)
            yield frame.with_columns([_as_text(name, schema[name]) for name in layout.wanted]).with_columns(numbers)
            first += len(frame)

    return layout, chunks()


def _as_text(name: str, kind: pl.DataType) -> pl.Expr:
    if isinstance(kind, pl.Datetime):
        return pl.col(name).dt.to_string("iso:strict")
    return pl.col(name).cast(pl.String)
