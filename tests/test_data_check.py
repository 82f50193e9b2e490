"""`data check` and `data clean`: every row accounted for whatever the bytes, every form of file read, the result whole or absent."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT, SHARED, fill, kill, lines, make_rows, needs_shared, start, wait_until, write_rows
from holdfast.cli import main
from holdfast.core.files import Json
from holdfast.rows import workers
from holdfast.rows.read import form_of, read_rows
from holdfast.rows.similar import Near, key_of, signatures

Call = Callable[..., Json]
GOOD = {"instruction": "Name a tree", "output": "birch"}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run `data ...` with --json; its object. `code` is what it must end with."""

    def run(*arguments: object, code: int | None = 0) -> Json:
        ended = main(["data", *map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert code is None or ended == code, err
        answer: Json = json.loads(out)
        return answer

    return run


def cleaned(call: Call, folder: Path, *paths: object, tag: str = "") -> tuple[Json, bytes, list[Json]]:
    out, rejects = folder / f"clean{tag}.jsonl", folder / f"rejects{tag}.jsonl"
    answer = call("clean", *paths, "--out", out, "--rejects", rejects)
    return answer, out.read_bytes(), lines(rejects)


def assert_law(answer: Json, clean_bytes: bytes, rejects: list[Json]) -> None:
    assert answer["rows"] == answer["kept"] + answer["mended"] + answer["rejected"]
    assert len(clean_bytes.splitlines()) == answer["kept"] + answer["mended"]
    assert len(rejects) == answer["rejected"]
    assert all({"file", "line", "reason", "detail"} <= set(row) and ("raw" in row) != ("raw_base64" in row) for row in rejects)


# ---- the law

PARTS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            json.dumps(GOOD).encode(),
            b'{"text": "sch\xc3\x83\xc2\xb6n"}',
            b'{"text": "a\\u0000b"}',
            b'{"prompt": "q", "completion": NaN, "x": 1}',
            b'{"prompt": "q", "completion": "a", "x": NaN, "y": 123456789012345678901234567890}',
            b'{"text": "\\u0001", "z": "\\ud800"}',
            b'{"text": "a"}{"text": "b"} {"text": "c"}',
            b'{"text": "a", "text": "b"}',
            b"[" * 2000,
            b'{"a":' * 2000,
            b'[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]',
            b"{\n",
            b'"output": "x",\n',
            b"}",
            b"[",
            b"]",
            b",",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"\x1f\x8b\x08",
            b"\r",
        ]
    ),
)


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(PARTS, max_size=8),
    between=st.sampled_from([b"\n", b"\r\n", b"", b",\n"]),
    suffix=st.sampled_from(["jsonl", "csv", "txt"]),
)
def test_the_law_holds_and_cleaning_again_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], between: bytes, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("law")
    file = folder / f"rows.{suffix}"
    file.write_bytes(between.join(parts))
    found = [quietly("clean", place, folder, tag) for place, tag in ((file, "1"), (folder / "clean1.jsonl", "2"))]
    for tag, answer in zip("12", found, strict=True):
        assert_law(answer, (folder / f"clean{tag}.jsonl").read_bytes(), lines(folder / f"rejects{tag}.jsonl"))
    assert (folder / "clean2.jsonl").read_bytes() == (folder / "clean1.jsonl").read_bytes()
    assert (found[1]["rows"], found[1]["rejected"]) == (found[0]["kept"] + found[0]["mended"], 0)
    assert file.read_bytes() == between.join(parts)


def quietly(kind: str, file: Path, folder: Path, tag: str) -> Json:
    """Call the command line where hypothesis allows no fixture of a function's."""
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["data", kind, str(file), "--out", f"{folder}/clean{tag}.jsonl", "--rejects", f"{folder}/rejects{tag}.jsonl", "--json"])
    assert code == 0
    answer: Json = json.loads(out.getvalue())
    return answer


@needs_shared
def test_every_broken_file_keeps_the_law(call: Call, tmp_path: Path) -> None:
    files = sorted(file for file in (SHARED / "data" / "broken").rglob("*") if file.is_file())
    answer, good, rejects = cleaned(call, tmp_path, *files)
    assert_law(answer, good, rejects)
    assert len(files) > 300
    must_parse = {file.name for file in files if file.name.startswith("y_")}
    refused = {Path(row["file"]).name for row in rejects if row["reason"] in ("parse_error", "bad_encoding")}
    assert not must_parse & refused


# ---- forms of files


def gzipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzipped,
    "two gzip members": lambda data: gzipped(data[:50]) + gzipped(data[50:]),
    "bz2": bz2.compress,
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "UTF-8 with a mark": lambda data: b"\xef\xbb\xbf" + data,
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16 big-endian, no mark": lambda data: data.decode().encode("utf-16-be"),
    "Latin-1": lambda data: data.decode().encode("latin-1"),
    "CRLF": lambda data: data.replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", ["lines", "array", "pretty array", "pretty objects", "csv"])
def test_the_same_rows_come_out_of_every_form_of_file(tmp_path: Path, shape: str, name: str) -> None:
    rows = [{"instruction": f"Größe, Übung {n}?", "output": f'schöne "Antwort" {n}\nin zwei Zeilen'} for n in range(30)]
    as_text = {
        "lines": "\n".join(json.dumps(row, ensure_ascii=False) for row in rows),
        "array": json.dumps(rows, ensure_ascii=False),
        "pretty array": json.dumps(rows, ensure_ascii=False, indent=2),
        "pretty objects": "\n".join(json.dumps(row, ensure_ascii=False, indent=1) for row in rows),
        "csv": "instruction,output\n" + "\n".join(f'"{r["instruction"]}","{r["output"].replace(chr(34), chr(34) * 2)}"' for r in rows),
    }[shape]
    file = tmp_path / ("rows.csv" if shape == "csv" else "rows.jsonl")
    file.write_bytes(FORMS[name](as_text.encode()))
    found = [row.value for row in read_rows(str(file)) if not hasattr(row, "reason")]
    if name == "CRLF" and shape == "csv":
        rows = [row | {"output": row["output"].replace("\n", "\r\n")} for row in rows]
    assert found == rows


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_are_read(tmp_path: Path, kind: str, call: Call) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist([*make_rows(2500), {"instruction": "x", "input": "", "output": None}])
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, file, row_group_size=700)
    else:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    answer = call("check", file, code=1)
    assert (answer["rows"], answer["by_reason"]) == (2501, {"missing_field": 1})
    file.write_bytes(file.read_bytes()[:-200])
    assert call("check", file, code=1)["by_reason"]["damaged_file"] == 1


@pytest.mark.parametrize("name", ["gzip", "bz2", "zstd"])
def test_a_torn_archive_gives_what_stands_before_the_tear(tmp_path: Path, name: str) -> None:
    import random

    draw = random.Random(0)
    rows = [{"text": "".join(draw.choices("abcdefghijklmnop ", k=900))} for _ in range(2000)]
    packed = FORMS[name]("\n".join(map(json.dumps, rows)).encode())
    file = tmp_path / "rows.jsonl.packed"
    file.write_bytes(packed[: len(packed) // 2])
    found = list(read_rows(str(file)))
    good = [row.value for row in found if not hasattr(row, "reason")]
    assert good == rows[: len(good)]
    assert len(good) > 100
    assert found[-1].reason == "damaged_file"


def test_a_damaged_array_is_read_on_behind_the_damage(tmp_path: Path) -> None:
    rows = make_rows(5)
    texts = [json.dumps(row) for row in rows]
    texts[2] = texts[2][:-3]  # its closing quote and bracket are missing
    file = tmp_path / "rows.json"
    file.write_text("[\n" + ",\n".join(texts) + "\n]")
    found = list(read_rows(str(file)))
    assert [getattr(row, "value", None) for row in found] == [rows[0], rows[1], None, rows[3], rows[4]]
    assert (found[2].reason, found[2].source.line) == ("parse_error", 4)
    assert found[2].raw.decode() == texts[2]


@pytest.mark.parametrize("before", [b"{", b"[{", b"{\n "], ids=["line", "array", "object"])
def test_a_huge_row_is_refused_in_bounded_memory(tmp_path: Path, before: bytes) -> None:
    file = tmp_path / "rows.jsonl"
    with file.open("wb") as handle:
        handle.write(before + b'"text": "')
        for _ in range(200):
            handle.write(b"x" * (1 << 20))
        handle.write(b'"\n{"text": "after"}\n')
    tracemalloc.start()
    found = list(read_rows(str(file)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0].reason == "too_large"
    assert "209,7" in found[0].detail
    assert len(found[0].raw) == 1 << 16
    assert peak < 130 << 20, f"{peak:,}"
    assert found[1].value == {"text": "after"}


def test_a_nesting_bomb_is_one_reject(tmp_path: Path) -> None:
    for number, bomb in enumerate(
        (b"[" * 3_000_000, b'{"a":' * 1_000_000, b'{"text": "a", "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    ):
        file = tmp_path / f"{number}.json"
        file.write_bytes(bomb + b"\n")
        (row,) = read_rows(str(file))
        assert row.reason in ("parse_error", "too_large")


def test_folders_patterns_and_what_is_not_there(call: Call, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "two.jsonl.gz").write_bytes(gzipped(json.dumps(GOOD).encode()))
    for name in ("a/one.jsonl", "a/.hidden.jsonl", "a/notes.pdf"):
        write_rows(tmp_path / name, [GOOD])
    assert [Path(entry["file"]).name for entry in call("check", tmp_path / "a")["files"]] == ["two.jsonl.gz", "one.jsonl"]
    assert call("check", f"{tmp_path}/a/*.jsonl", tmp_path / "a" / "one.jsonl")["rows"] == 2
    assert main(["data", "check", str(tmp_path / "a" / "one.json")]) == 2
    assert f"did you mean {tmp_path}/a/one.jsonl?" in capsys.readouterr().err


def test_a_file_says_how_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.json.gz"
    file.write_bytes(gzipped("[]".encode("utf-16")))
    assert form_of(str(file)).words == "a JSON array, gzip, UTF-16-LE"


# ---- layouts


TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
RESULT = {"role": "tool", "content": "1"}
CALLS = [{"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"question": "q", "answer": "a"}, None),
        ({"instruction": "q", "context": "c", "response": "a"}, None),
        (TALK, None),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, TALK[1]]}, None),
        (
            {"messages": [TALK[0], {"role": "assistant", "content": None, "tool_calls": CALLS}, RESULT, TALK[1]]},
            None,
        ),
        ({"messages": [TALK[0], {"role": "assistant", "content": None, "tool_calls": CALLS}, *TALK]}, "tool_call_without_result"),
        ({"messages": [TALK[1], *TALK]}, "wrong_order"),
        ({"messages": [TALK[0], {"role": "assistant", "content": ""}, *TALK]}, "empty_turn"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}, TALK[1]]}, "wrong_type"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": '{"name": "f", "arguments": {}}'}]}, None),
        ({"instruction": "same words here", "output": "same  words here"}, "answer_equals_prompt"),
        ({"messages": [TALK[0], {"role": "assistant", "content": "a<|im_end|>b"}]}, "special_token_in_text"),
        ({"text": "rendered<|im_end|>"}, None),
    ],
)
def test_layouts_and_what_is_wrong_with_their_turns(
    call: Call, tmp_path: Path, assets: SimpleNamespace, row: Any, reason: str | None
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [GOOD, row])
    answer = call("check", file, "--tokenizer", assets.model, code=1 if reason else 0)
    assert answer["by_reason"] == ({reason: 1} if reason else {})


def test_fields_of_other_names_and_mixed_layouts(call: Call, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", [{"frage": "q", "antwort": "a"}, GOOD, {"text": "t"}])
    mapped = call("check", file, "--field", "instruction=frage", "--field", "output=antwort")
    assert (mapped["kept"], mapped["layouts"], mapped["mixed_files"]) == (3, {"alpaca": 2, "text": 1}, [str(file)])


def test_a_field_that_is_given_twice_is_refused_unless_both_agree(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "text": "b"}\n{"text": "c", "text": "c"}\n{"text": "x", "meta": {"text": "y"}}\n')
    answer = call("check", file, code=1)
    assert (answer["by_reason"], answer["kept"]) == ({"duplicate_key": 1}, 2)


# ---- mending, repetitions, limits


def test_a_mended_row_keeps_its_numbers_and_its_original(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    raw = '{"id": 123456789012345678901234567890, "score": NaN, "text": "schÃ¶n\\u0000", "old": 1.50}'
    file.write_text(f"{raw}\n" + json.dumps(GOOD) + "  \n", encoding="utf-8")
    answer, good, rejects = cleaned(call, tmp_path, file)
    assert_law(answer, good, rejects)
    assert (answer["kept"], answer["mended"]) == (1, 1)
    assert good.splitlines()[0].decode() == '{"id": 123456789012345678901234567890, "score": null, "text": "schön", "old": 1.5}'
    assert good.splitlines()[1] == json.dumps(GOOD).encode()
    originals = lines(tmp_path / "clean.jsonl.mended.jsonl")
    assert [(row["line"], row["reason"], row["raw"]) for row in originals] == [
        (1, reason, raw) for reason in ("nan_literal", "control_characters", "mojibake")
    ]


def test_repetitions_are_counted_and_dropped_when_asked(call: Call, tmp_path: Path) -> None:
    long = " ".join(f"word{n}" for n in range(40))
    rows = [
        {"prompt": "Describe it", "completion": long},
        {"prompt": "describe  IT", "completion": long},
        {"prompt": "Describe it", "completion": long + "!"},
        {"prompt": "Another question", "completion": "42"},
    ]
    file, held_out = write_rows(tmp_path / "rows.jsonl", rows), write_rows(tmp_path / "held.jsonl", rows[3:])
    answer = call("check", file, "--held-out", held_out)
    assert [answer[kind] for kind in ("duplicates", "near_duplicates", "conflicting_answers", "in_held_out")] == [1, 1, 1, 1]
    assert answer["rejected"] == 0
    out, rejects = tmp_path / "c.jsonl", tmp_path / "r.jsonl"
    dropped = call("clean", file, "--out", out, "--rejects", rejects, "--drop", "duplicate", "--drop", "near-duplicate")
    assert_law(dropped, out.read_bytes(), lines(rejects))
    assert [(row["line"], row["reason"], json.loads(row["raw"])) for row in lines(rejects)] == [
        (2, "duplicate", rows[1]),
        (3, "near_duplicate", rows[2]),
    ]


def test_rows_that_are_too_long(call: Call, tmp_path: Path, assets: SimpleNamespace) -> None:
    rows = [*make_rows(3), {"instruction": "Say", "output": "amber " * 200}, {"instruction": "amber " * 200, "output": "x"}]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    options = ("check", file, "--tokenizer", assets.model, "--max-tokens", 64)
    cut = call(*options, code=1)
    assert (cut["by_reason"], cut["tokens"]["max"]) == ({"answer_cut": 1, "all_labels_masked": 1}, 64)
    assert call(*options, "--too-long", "reject", code=1)["by_reason"] == {"too_long": 2}


def test_train_and_check_agree_on_every_row(call: Call, tmp_path: Path, assets: SimpleNamespace) -> None:
    from holdfast.rows.rules import Rules
    from holdfast.rows.shard import blocks, tokenise
    from holdfast.rows.tokens import load_codec

    odd = [
        {"instruction": "q", "output": ""},
        {"text": "a\x00b"},
        {"messages": [TALK[1], *TALK]},
        {"instruction": "a", "output": "b " * 99},
    ]
    file = write_rows(tmp_path / "rows.jsonl", [*make_rows(50), *odd])
    answer = call("check", file, "--tokenizer", assets.model, "--max-tokens", 64, code=1)
    (block,) = blocks(str(file))
    shard = tokenise(block, Rules(max_tokens=64), load_codec(assets.model))
    found = shard.verdicts
    assert (found.kept, found.mended, found.rejected) == (answer["kept"], answer["mended"], answer["rejected"]) == (50, 2, 2)
    assert dict(found.by_reason) == answer["by_reason"]
    assert answer["tokens"]["total"] == len(shard.ids)


# ---- clean: whole or absent, in order, whoever works


def many_rows(file: Path, count: int) -> Path:
    rows: list[dict[str, Any]] = [row | {"instruction": f"{row['instruction']} {n}"} for n, row in enumerate(make_rows(count))]
    for n in range(0, count, 97):
        rows[n]["output"] = ["", "a\x07b", None, "schÃ¶n"][n % 4]
    return write_rows(file, rows)


def test_workers_change_nothing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = many_rows(tmp_path / "rows.jsonl", 5000)
    results = []
    for tag, count in (("one", 1), ("two", 2)):
        monkeypatch.setattr(workers, "_BLOCKS_HERE", 1)
        out, rejects = tmp_path / f"{tag}.jsonl", tmp_path / f"{tag}-rejects.jsonl"
        answer = call("clean", file, "--out", out, "--rejects", rejects, "--workers", count)
        counts = {
            key: answer[key] for key in ("rows", "kept", "mended", "rejected", "by_reason", "tokens", "duplicates", "near_duplicates")
        }
        results.append((counts, out.read_bytes(), rejects.read_bytes(), Path(f"{out}.mended.jsonl").read_bytes()))
    assert results[0] == results[1]


def test_an_interrupted_cleaning_goes_on(call: Call, tmp_path: Path) -> None:
    file = many_rows(tmp_path / "rows.jsonl", 120_000)
    arguments = (file, "--out", tmp_path / "c.jsonl", "--rejects", tmp_path / "r.jsonl")
    child = start("data", "clean", *arguments, "--workers", 1)
    work = tmp_path / ".c.jsonl.unfinished"
    wait_until(lambda: work.is_dir() and len(list(work.iterdir())) > 10)
    kill(child.pid)
    child.communicate()
    assert not (tmp_path / "c.jsonl").exists()
    answer = call("clean", *arguments)
    assert answer["blocks_reused"] > 10
    assert not work.exists()
    assert_law(answer, (tmp_path / "c.jsonl").read_bytes(), lines(tmp_path / "r.jsonl"))
    order = [int(json.loads(line)["instruction"].rsplit(" ", 1)[1]) for line in (tmp_path / "c.jsonl").read_bytes().splitlines()]
    assert order == sorted(order)


def test_a_full_disk_leaves_nothing_half_done(tmp_path: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = many_rows(tmp_path / "rows.jsonl", 3000)
    fill(small_disk)
    before = sorted(small_disk.iterdir())
    assert main(["data", "clean", str(file), "--out", str(small_disk / "c.jsonl"), "--rejects", str(tmp_path / "r.jsonl")]) == 1
    said = capsys.readouterr().err
    assert "is full; nothing was written" in said
    assert sorted(small_disk.iterdir()) == before
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("out", "rejects", "says"),
    [
        ("rows.jsonl", "r.jsonl", "is one of the inputs"),
        ("link.jsonl", "r.jsonl", "is one of the inputs"),
        ("c.jsonl", "c.jsonl", "is one of the inputs"),
        ("c.csv", "r.jsonl", "the clean rows are JSON Lines"),
        (".", "r.jsonl", "is a folder"),
    ],
)
def test_an_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, rejects: str, says: str) -> None:
    file = write_rows(tmp_path / "rows.jsonl", make_rows(3))
    (tmp_path / "link.jsonl").symlink_to(file)
    whole = file.read_bytes()
    assert main(["data", "clean", str(file), "--out", str(tmp_path / out), "--rejects", str(tmp_path / rejects)]) == 2
    assert says in capsys.readouterr().err
    assert file.read_bytes() == whole


# ---- what is shown


def test_the_page_and_the_table_escape_what_rows_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*make_rows(50), {"instruction": "<script>alert(1)</script>", "output": ""}, {"instruction": "x", "output": None}]
    file, page = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "rows.html"
    with file.open("ab") as handle:
        handle.write(b"[bold]\x1b[2J\x07\n")
    assert main(["data", "check", str(file), "--max-tokens", "400", "--html", str(page)]) == 1
    shown, text = capsys.readouterr().out, page.read_text()
    assert "53 rows = 50 kept + 0 mended + 3 rejected" in shown
    assert "\x1b" not in shown
    assert "[bold]\\x1b[2J" in shown
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert 'class="marker"' in text, "the cap is drawn into the lengths"
    assert not [address for address in ("http://", "https://", "src=") if address in text]


def test_the_memory_of_a_check_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    peaks = []
    for count in (4_000, 24_000):
        file = write_rows(tmp_path / f"{count}.jsonl", [{"text": f"{n} " + "amber birch " * 40} for n in range(count)])
        script = (
            "import resource, sys; from holdfast.cli import main; main(['data', 'check', sys.argv[1], '--workers', '1', '--json']);"
            "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0], file=sys.stderr)"
        )
        command = [sys.executable, "-c", script, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks.append(int(done.stderr.split()[-1]) // 1024)
    assert peaks[1] < peaks[0] + 40, peaks


def test_bytes_that_are_not_text_come_back_whole(call: Call, tmp_path: Path) -> None:
    raw = b'{"text": "\xff\xfe\x80 caf\xc3\xa9"}'
    file = tmp_path / "rows.jsonl"
    file.write_bytes(json.dumps(GOOD).encode() + b"\n" + raw + b"\n\n")
    _, _, rejects = cleaned(call, tmp_path, file)
    assert [(row["line"], row["reason"], base64.b64decode(row["raw_base64"])) for row in rejects] == [(2, "bad_encoding", raw)]


def test_near_duplicates_are_remembered_in_bounded_memory() -> None:
    texts = [" ".join(f"{key_of(f'{n} {word}') % 10**9}" for word in range(8)) for n in range(3000)]
    found, enough = signatures([*texts, texts[2999] + "!", texts[0] + "!"])
    assert enough.all()
    near = Near(most=2048)
    marks: list[bool] = []
    for begin in range(0, len(found), 100):
        marks += near.add(found[begin : begin + 100]).tolist()
    assert not any(marks[:3000])
    assert marks[3000:] == [True, False], "the last 2,048 rows are remembered, the first ones are not"
