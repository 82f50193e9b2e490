"""Write a table in chunks, by the name of its file: CSV, Parquet or JSON Lines. Whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import polars as pl

from holdfast.base.files import replacing

FORMS = (".csv", ".parquet", ".jsonl")


@contextlib.contextmanager
def table_writer(out: Path) -> Iterator[Callable[[pl.DataFrame], None]]:
    """Yield a function that writes a chunk. CSV has an empty field where there is no value. Raises OSError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    kind = out.suffix.lower()
    with replacing(out) as handle:
        if kind == ".parquet":
            with _parquet(handle) as write:
                yield write
        elif kind == ".jsonl":
            yield lambda frame: frame.write_ndjson(handle)
        else:
            begun: list[bool] = []

            def write_csv(frame: pl.DataFrame) -> None:
                frame.write_csv(handle, include_header=not begun)
                begun.append(True)

            yield write_csv


@contextlib.contextmanager
def _parquet(handle: BinaryIO) -> Iterator[Callable[[pl.DataFrame], None]]:
    import pyarrow.parquet

    writers: list[pyarrow.parquet.ParquetWriter] = []

    def write(frame: pl.DataFrame) -> None:
        arrow = frame.to_arrow()
        if not writers:
            writers.append(pyarrow.parquet.ParquetWriter(handle, arrow.schema))
        writers[0].write_table(arrow)

    try:
        yield write
    finally:
        for writer in writers:
            writer.close()
