"""Parquet and Arrow files that were received: offsets beyond their buffers, texts that are none, rows that swell."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from holdfast.data.files.raw_row import LARGEST_ROW, RawRow, Reject
from holdfast.data.files.read import read_rows

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def arrow(file: Path, batch: object) -> Path:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:  # type: ignore[attr-defined]
        writer.write_batch(batch)
    return file


def with_offsets(file: Path, first: int, end: int) -> Path:
    """One text of 16 bytes whose two offsets were overwritten by these."""
    arrow(file, pa.RecordBatch.from_pydict({"text": ["sixteen bytes..."]}))
    content, offsets = file.read_bytes(), struct.pack("<2i", 0, 16)
    at = content.rindex(offsets, 0, content.index(b"sixteen"))
    file.write_bytes(content[:at] + struct.pack("<2i", first, end) + content[at + 8 :])
    return file


def rows(file: Path) -> list[RawRow | Reject]:
    return list(read_rows(str(file)))


@pytest.mark.parametrize("offsets", [(0, 2**30), (0, 40), (8, 2), (-5, 5), (0, -1)])
def test_offsets_are_looked_at_before_they_are_followed(tmp_path: Path, offsets: tuple[int, int]) -> None:
    """In a process of its own: what is not refused here ends it."""
    file = with_offsets(tmp_path / "rows.arrow", *offsets)
    text = "import sys; from holdfast.data.files.read import read_rows; print([type(r).__name__ for r in read_rows(sys.argv[1])])"
    done = subprocess.run([sys.executable, "-c", text, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "['Reject']"), done.stderr


def test_a_bit_that_is_wrong_in_parquet_is_told(tmp_path: Path) -> None:
    """Also where it makes a text one that its dictionary does not have."""
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": ["a", "b", "c"] * 30}), file, compression="none", write_statistics=False)
    content = file.read_bytes()
    told = set()
    for at in range(4, 90):  # the dictionary, and behind it the places in it
        file.write_bytes(content[:at] + bytes([content[at] ^ 8]) + content[at + 1 :])
        told |= {row.reason for row in rows(file) if isinstance(row, Reject)}
    assert "damaged_file" in told


def bad_text(file: Path) -> Path:
    column = pa.array([b"good", b"\xff bad", b"good too"], pa.binary()).view(pa.utf8())
    return arrow(file, pa.RecordBatch.from_arrays([column], names=["text"]))


def bad_text_in_parquet(file: Path) -> Path:
    column = pa.array([b"good", b"\xff bad", b"good too"], pa.binary()).view(pa.utf8())
    pq.write_table(pa.table({"text": column}), file)
    return file


@pytest.mark.parametrize("make", [bad_text, bad_text_in_parquet])
def test_a_text_that_is_not_utf_8_costs_its_own_row_alone(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    found = rows(make(tmp_path / ("rows.arrow" if make is bad_text else "rows.parquet")))
    assert [row.value["text"] if isinstance(row, RawRow) else (row.reason, row.raw) for row in found] == [
        "good",
        ("bad_encoding", b"\xff bad"),
        "good too",
    ]


def swollen_arrow(file: Path) -> Path:
    batch = pa.RecordBatch.from_pydict({"text": ["short", "x" * (LARGEST_ROW + 1), "short too"]})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return file


def swollen_parquet(file: Path) -> Path:
    pq.write_table(pa.table({"text": ["short", "x" * (LARGEST_ROW + 1), "short too"]}), file)
    return file


@pytest.mark.parametrize("make", [swollen_arrow, swollen_parquet])
def test_a_row_beyond_the_limit_is_rejected_as_that(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    file = make(tmp_path / ("rows.arrow" if make is swollen_arrow else "rows.parquet"))
    assert file.stat().st_size < 1 << 20
    found = rows(file)
    assert [row.reason if isinstance(row, Reject) else row.value["text"] for row in found] == ["short", "too_large", "short too"]


def test_a_thousand_rows_of_one_long_text_take_the_memory_of_a_few(tmp_path: Path) -> None:
    """One text of a mebibyte, coded once: 1 GiB as rows."""
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": pa.array(["x" * (1 << 20)] * 1024).dictionary_encode()}), file)
    text = "import sys; from holdfast.data.files.read import read_rows; print(sum(1 for _ in read_rows(sys.argv[1])))"
    limit = lambda: resource.setrlimit(resource.RLIMIT_DATA, (700 << 20, 700 << 20))  # noqa: E731
    done = subprocess.run([sys.executable, "-c", text, str(file)], capture_output=True, text=True, preexec_fn=limit, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1024"), done.stderr


KINDS = {
    "text": ["a", None, "ccc"],
    "large": pa.array(["a", None, "ccc"], pa.large_string()),
    "bytes": [b"a", None, b"ccc"],
    "number": [1, None, 3],
    "truth": [True, None, False],
    "nothing": pa.nulls(3),
    "list": [["a", "b"], None, []],
    "struct": [{"role": "user", "content": "x"}, None, {"role": "a", "content": None}],
    "turns": [[{"role": "user", "content": "x"}], None, [{"role": "a", "content": "y"}, {"role": "b", "content": None}]],
    "map": pa.array([[("k", "v")], None, [("a", "b"), ("c", None)]], pa.map_(pa.string(), pa.string())),
    "dictionary": pa.array(["a", None, "a"]).dictionary_encode(),
    "time": pa.array([0, None, 1], pa.timestamp("s")),
    "decimal": pa.array([None, None, None], pa.decimal128(10, 2)),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
    "view": pa.array(["a", None, "ccc"], pa.string_view()),
}


@pytest.mark.parametrize("name", KINDS)
def test_values_of_every_kind_are_read_as_pyarrow_reads_them(tmp_path: Path, name: str) -> None:
    """A map is an object, as in a file of JSON."""
    table = pa.table({"value": KINDS[name], "number": [1, 2, 3]}).slice(1)  # a slice, so that offsets do not begin at 0
    file = arrow(tmp_path / "rows.arrow", table.to_batches()[0])
    dumped = [
        orjson.dumps(row, default=lambda v: v.decode() if isinstance(v, bytes) else str(v))
        for row in table.to_pylist(maps_as_pydicts="strict")
    ]
    expected = [orjson.loads(row) for row in dumped]
    assert [row.value for row in rows(file) if isinstance(row, RawRow)] == expected


def test_rows_that_take_no_bytes_are_not_counted_up_to_a_number_in_the_file(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(1 << 22)], names=["text"])
    file = arrow(tmp_path / "rows.arrow", batch)
    content, count = file.read_bytes(), struct.pack("<q", 1 << 22)
    assert content.count(count) > 1, "of the batch and of its column"
    file.write_bytes(content.replace(count, struct.pack("<q", 1 << 50)))
    found = [row for row in read_rows(str(file)) if isinstance(row, Reject)]
    assert [row.reason for row in found] == ["damaged_file"] and f"claims {1 << 50:,} rows" in found[0].detail


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_column_whose_name_is_not_utf_8_is_told(tmp_path: Path, form: str) -> None:
    table, file = pa.table({"unusual_name": ["a", "b"]}), tmp_path / f"rows.{form}"
    arrow(file, table.to_batches()[0]) if form == "arrow" else pq.write_table(table, file)
    file.write_bytes(file.read_bytes().replace(b"unusual_name", b"unusual\xffname"))
    assert [(row.reason, "utf-8" in row.detail) for row in rows(file) if isinstance(row, Reject)] == [("damaged_file", True)]
