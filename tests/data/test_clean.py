"""`data clean`: whole or absent, in order, the same whoever works, on from where it was interrupted, never over an input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import assert_law, fill, kill, lines, make_rows, start, wait_until, write_rows
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.data.workers import workers

Call = Callable[..., Json]
GOOD = {"instruction": "Name a tree", "output": "birch"}


def many_rows(file: Path, count: int) -> Path:
    rows: list[dict[str, Any]] = [row | {"instruction": f"{row['instruction']} {n}"} for n, row in enumerate(make_rows(count))]
    for n in range(0, count, 97):
        rows[n]["output"] = ["", "a\x07b", None, "schÃ¶n"][n % 4]
    return write_rows(file, rows)


def test_workers_change_nothing(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = many_rows(tmp_path / "rows.jsonl", 5000)
    results = []
    monkeypatch.setattr(workers, "_BLOCKS_HERE", 1)
    for tag, count, threads in (("one", 1, 0), ("copies", 2, 0), ("new processes", 2, 1)):
        out, rejects = tmp_path / f"{tag}.jsonl", tmp_path / f"{tag}-rejects.jsonl"
        with ThreadPoolExecutor(1) as beside:
            for _ in range(threads):
                beside.submit(int)
            answer = call("clean", file, "--out", out, "--rejects", rejects, "--workers", count)
        counts = {
            key: answer[key] for key in ("rows", "kept", "mended", "rejected", "by_reason", "tokens", "duplicates", "near_duplicates")
        }
        results.append((counts, out.read_bytes(), rejects.read_bytes(), Path(f"{out}.mended.jsonl").read_bytes()))
    assert results[0] == results[1] == results[2]


def test_an_interrupted_cleaning_goes_on(call: Call, tmp_path: Path) -> None:
    file = many_rows(tmp_path / "rows.jsonl", 60_000)
    arguments = (file, "--out", tmp_path / "c.jsonl", "--rejects", tmp_path / "r.jsonl")
    child = start("data", "clean", *arguments, "--workers", 1)
    work, others = tmp_path / ".c.jsonl.unfinished", tmp_path / f".c.jsonl.{os.getppid()}.tmp"
    others.write_text("of a process that lives")
    wait_until(lambda: work.is_dir() and len(list(work.iterdir())) > 10)
    kill(child.pid)
    child.communicate()
    assert not (tmp_path / "c.jsonl").exists()
    answer = call("clean", *arguments)
    assert answer["blocks_reused"] >= 10, "the eleventh may have been half written"
    assert not work.exists()
    assert [file for file in tmp_path.iterdir() if file.suffix == ".tmp"] == [others]
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
        ("c.jsonl", "c.jsonl", "is named twice"),
        ("c.csv", "r.jsonl", "rows are written as JSON Lines"),
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("clean", "rows.jsonl", "--out", "ROWS.jsonl"), "is one of the inputs"),
        (("clean", "rows.jsonl", "--out", "c.jsonl", "--rejects", "C.jsonl"), "is named twice"),
        (("split", "rows.jsonl", "--into", "a.jsonl=0.5", "--into", "A.jsonl=0.5"), "is named twice"),
        (("split", "rows.jsonl", "--into", "Rows.jsonl=0.5", "--into", "b.jsonl=0.5"), "is one of the inputs"),
        (("sample", "rows.jsonl", "--rows", "2", "--out", "Rows.Jsonl"), "is one of the inputs"),
        (("make", "--rows", "9", "--out", "m.jsonl", "--held-out", "M.jsonl"), "is named twice"),
    ],
)
@pytest.mark.parametrize("blind", [True, False])
def test_names_that_differ_in_case_alone_are_one_file_where_the_disk_says_so(
    blind: bool, words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", make_rows(40)).read_bytes()
    monkeypatch.chdir(tmp_path)
    if blind:
        there = lambda path: any(path.name.lower() == entry.name.lower() for entry in path.parent.iterdir())  # noqa: E731
        monkeypatch.setattr(os.path, "lexists", there)
    code = main(["data", *words])
    assert (code == 2 and says in capsys.readouterr().err) if blind else code in (0, 1)
    assert (tmp_path / "rows.jsonl").read_bytes() == rows


def test_what_is_told_of_rows_is_told_of_those_that_are_left(call: Call, tmp_path: Path) -> None:
    """A repeated row was counted among layouts, notes, languages' scripts, fields and answers although it was dropped."""
    talk = [{"role": "user", "content": "Как дела?"}, {"role": "assistant", "content": "Хорошо, спасибо"}]
    call_of_tool = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    odd: list[dict[str, Any]] = [
        {"messages": talk, "category": "ru", "score": 3},
        {"instruction": "Name a bird", "output": "As an AI language model, I cannot name a bird.\x07"},
        {"instruction": "Name a town", "output": "schÃ¶n gr\x07"},
        {"messages": [talk[0], call_of_tool]},
    ]
    plain: list[dict[str, Any]] = [{"instruction": f"Name tree number {n} of {7 * n}", "output": f"birch {n}"} for n in range(5)]
    file = write_rows(tmp_path / "rows.jsonl", [*plain, *odd, *(row for row in odd for _ in range(4)), {"instruction": "bad"}])
    out, rejects = tmp_path / "c.jsonl", tmp_path / "r.jsonl"
    answer = call("clean", file, "--out", out, "--rejects", rejects, "--drop", "duplicate", "--workers", 1)
    alone = call("check", write_rows(tmp_path / "alone.jsonl", [*plain, *odd]), "--workers", 1)
    assert (answer["rejected"], answer["duplicates"], len(lines(rejects))) == (17, 16, 17)
    assert answer["by_reason"] == alone["by_reason"] | {"duplicate": 16, "missing_field": 1}
    for what in ("kept", "mended", "learned", "notes", "unused_fields", "layouts", "scripts", "categories", "tokens"):
        assert answer[what] == alone[what], what
    assert all(each["line"] <= 9 for reason in answer["notes"] for each in answer["examples"][reason])
