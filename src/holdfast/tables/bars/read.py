"""Which columns of a table are bars, and its rows with them. Judges no bar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.tables.table.frames import Frames, as_text, open_frames

_NAMES = {
    "timestamp": ("timestamp", "time", "datetime", "date_time", "ts", "ts_event", "date"),
    "open": ("open", "o"),
    "high": ("high", "h"),
    "low": ("low", "l"),
    "close": ("close", "c"),
    "volume": ("volume", "vol", "v"),
}
JOINED = {f"{name}_joined": name for name in ("open", "high", "low", "close")}  # the prices of one continuous series, which may be kept
_CONTRACT = ("contract", "symbol", "instrument", "ticker")
_MOST_COLUMNS = 1000


@dataclass(frozen=True)
class Layout:
    """Which column of a file is what. keep: columns that are carried along as they are."""

    columns: dict[str, str]
    contract: str | None
    keep: tuple[str, ...]

    @property
    def wanted(self) -> list[str]:
        return list(dict.fromkeys([*self.columns.values(), *([self.contract] if self.contract else []), *self.keep]))


def layout_of(frames: Frames, keep: list[str]) -> Layout:
    """Find the columns of a file by their names, in any case. Raises Stop(1) naming what is missing and what is there."""
    by_name = {name.strip().lower(): name for name in reversed(frames.names)}
    found = {what: next((by_name[name] for name in known if name in by_name), None) for what, known in _NAMES.items()}
    missing = [what for what, name in found.items() if name is None]
    missing += [name for name in keep if name not in frames.names and name not in JOINED]
    if missing:
        text = f"{frames.file} has no column {', '.join(missing)}; it has {frames.shown()}"
        raise Stop(BLOCKED, text, "bars are timestamp, open, high, low, close, volume")
    contract = next((by_name[name] for name in _CONTRACT if name in by_name), None)
    there = tuple(name for name in keep if name in frames.names)
    return Layout({what: name for what, name in found.items() if name is not None}, contract, there)


def read_chunks(file: Path, keep: list[str], bars: int) -> tuple[Layout, Iterator[pl.DataFrame]]:
    """Return (columns, rows in chunks of at most `bars`): texts as they stand there, and their lines. Raises Stop(1), OSError."""
    frames = open_frames(file, _MOST_COLUMNS)
    layout = layout_of(frames, keep)
    texts = (frame.with_columns(as_text(frame[name]).alias(name) for name in layout.wanted) for frame in frames.chunks(layout.wanted, bars))
    return layout, texts
