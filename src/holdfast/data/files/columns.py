"""Rows of Parquet and Arrow files, by pyarrow (optional), in bounded memory. Each row becomes one JSON object.

Offsets and lengths in a file are looked at before they are followed: pyarrow follows them unseen, out of its buffers. A row is
measured before it is made, so that a few bytes of compressed or dictionary-coded data never become gigabytes of Python objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import of_the_file
from holdfast.base.versions import install
from holdfast.data.files.raw_row import LARGEST_ROW, UnparsedRow, overlong

_BATCH = 1024  # rows
_FREE, _PER_BYTE = 1 << 18, 1 << 12  # rows that a file may have
_FIXED = 8  # bytes of a number, a date, a truth value, nearly
Sizes = npt.NDArray[np.int64]


def read_columns(file: str, kind: str) -> Iterator[UnparsedRow]:
    """Yield every row of a Parquet or Arrow file, numbered from 1. Raises Stop(1) without pyarrow."""
    try:
        import pyarrow as pa
    except ImportError:
        raise Stop(BLOCKED, f"{file} is a {kind} file; reading it needs pyarrow", install("parquet")) from None
    number = 0
    try:
        for batch in _parquet_batches(pa, file) if kind == "parquet" else _arrow_batches(pa, file):
            sizes = row_sizes(pa, batch)
            for first, count in _portions(sizes):
                if int(sizes[first]) > LARGEST_ROW:
                    number += 1
                    yield overlong(number, b"", int(sizes[first]))
                    continue
                part = batch.slice(first, count)
                for row, twice in zip(_rows(part), _given_twice(part), strict=True):
                    number += 1
                    made = _row(number, row)
                    yield made._replace(damage=("duplicate_key", twice)) if twice else made
    except (pa.ArrowException, OSError, MemoryError, OverflowError, UnicodeDecodeError) as error:  # a column's name, too, may be none
        of_the_file(error, file)
        yield UnparsedRow(number + 1, b"", ("damaged_file", f"no {kind} data can be read behind row {number:,}: {error}"))


def _parquet_batches(pa: Any, file: str) -> Iterator[Any]:
    """Yield batches whose texts stay dictionary-encoded where the file has them so: decoded, each row would have its own copy."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as plain:
        texts = [field.name for field in plain.schema_arrow if pa.types.is_string(field.type) or pa.types.is_binary(field.type)]
    with pq.ParquetFile(file, read_dictionary=texts) as found:
        _refuse_claims(pa, file, found.metadata.num_rows)
        for batch in found.iter_batches(_BATCH):
            as_bytes(pa, batch).validate(full=True)  # places in a dictionary, too
            yield batch


def _arrow_batches(pa: Any, file: str) -> Iterator[Any]:
    claimed = 0
    with pa.memory_map(file) as source:
        for batch in _stored_batches(pa, source):
            claimed += batch.num_rows
            _refuse_claims(pa, file, claimed)
            as_bytes(pa, batch).validate(full=True)
            for first in range(0, batch.num_rows, _BATCH):
                yield batch.slice(first, _BATCH)


def _refuse_claims(pa: Any, file: str, rows: int) -> None:
    """Raise ArrowInvalid for more rows than a file has: those of columns without values take no bytes, so it may claim any number."""
    size = Path(file).stat().st_size
    if rows > max(_FREE, _PER_BYTE * size):
        raise pa.ArrowInvalid(f"it claims {rows:,} rows, which its {size:,} bytes cannot hold")


def _stored_batches(pa: Any, source: Any) -> Iterator[Any]:
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        while source.tell() < source.size():  # streams one after the other, as cat joins files
            yield from pa.ipc.open_stream(source)
        return
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)


def as_bytes(pa: Any, batch: Any) -> Any:
    """Cast the texts of a batch to bytes, so that text that is not UTF-8 rejects its row and not the file."""
    columns = []
    for column in batch.columns:
        if pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type):
            column = pa.DictionaryArray.from_arrays(column.indices, column.dictionary.view(pa.binary()), safe=False)
        elif pa.types.is_string(column.type):
            column = column.view(pa.binary())
        elif pa.types.is_large_string(column.type):
            column = column.view(pa.large_binary())
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def row_sizes(pa: Any, batch: Any) -> Sizes:
    """Estimate the bytes each row of a batch takes as JSON, int64[rows], without making any of them."""
    return sum((_sizes(pa, column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def _sizes(pa: Any, array: Any) -> Sizes:
    import pyarrow.compute as pc

    kind, count = array.type, len(array)
    if pa.types.is_dictionary(kind):
        taken = array.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        of_values = _sizes(pa, array.dictionary)
        return of_values[taken] if len(of_values) else np.zeros(count, np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return np.asarray(pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_struct(kind):
        return sum((_sizes(pa, part) for part in array.flatten()), np.zeros(count, np.int64))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.asarray(pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
        of_items = _sizes(pa, array.flatten()) + 1
        ends = np.concatenate([[0], np.cumsum(of_items)])[np.concatenate([[0], np.cumsum(lengths)])]
        return np.asarray(np.diff(ends), np.int64)
    if pa.types.is_primitive(kind) or pa.types.is_null(kind):
        return np.full(count, _FIXED, np.int64)
    return np.array([array.slice(at, 1).nbytes for at in range(count)], np.int64)


def _portions(sizes: Sizes) -> Iterator[tuple[int, int]]:
    """Yield (first row, how many) of stretches of rows that together are no larger than one row may be; a larger row stands alone."""
    first, held = 0, 0
    for at, size in enumerate(sizes.tolist()):
        if at > first and held + size > LARGEST_ROW:
            yield first, at - first
            first, held = at, 0
        held += size
    if first < len(sizes):
        yield first, len(sizes) - first


def _rows(batch: Any) -> list[dict[str, Any] | UnicodeDecodeError]:
    try:
        rows = [*batch.to_pylist()]
        return [_with_maps(row) for row in rows] if "map<" in str(batch.schema) else rows
    except UnicodeDecodeError as error:
        if batch.num_rows == 1:
            return [error]
        return [row for at in range(batch.num_rows) for row in _rows(batch.slice(at, 1))]


def _given_twice(batch: Any) -> list[str]:
    """Say of each row which column it has more than once, with different values; "" of nearly all."""
    said, names = [""] * batch.num_rows, batch.schema.names
    for name in {name for name in names if names.count(name) > 1}:
        of_name = [column.to_pylist() for one, column in zip(names, batch.columns, strict=True) if one == name]
        for at, (first, *others) in enumerate(zip(*of_name, strict=True)):
            if any(other != first for other in others):
                said[at] = f"the file names the column {name!r} more than once, here with different values"
    return said


def _with_maps(value: Any) -> Any:
    """Return a value with its maps, which pyarrow gives as lists of pairs, as objects."""
    if isinstance(value, dict):
        return {name: _with_maps(inside) for name, inside in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return {str(name): _with_maps(inside) for name, inside in value}
    return [*map(_with_maps, value)] if isinstance(value, list) else value


def _row(number: int, row: dict[str, Any] | UnicodeDecodeError) -> UnparsedRow:
    if isinstance(row, UnicodeDecodeError):
        detail = f"a text is not UTF-8: byte 0x{row.object[row.start]:02x} at offset {row.start}"
        return UnparsedRow(number, bytes(row.object), ("bad_encoding", detail))
    try:
        return UnparsedRow(number, orjson.dumps(row, default=_plain, option=orjson.OPT_NON_STR_KEYS))
    except (TypeError, orjson.JSONEncodeError) as error:
        return UnparsedRow(number, repr(row).encode("utf-8", "backslashreplace"), ("parse_error", f"no JSON: {error}"))


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
