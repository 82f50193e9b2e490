"""Journals that end in the middle of a line, as a power cut leaves them: no run ends of it, its bits are the same, and it is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import holdfast, lines
from holdfast.base.files import append_line, cut_torn_line, last_line, read_lines
from support.old_runs import check_bits, command_of, settle

# how a journal's end is torn: bytes cut off, and what the disk has behind them
TORN = {"short": (5, b""), "no line end": (1, b""), "zeros": (20, b"\0" * 512), "other bytes": (3, b"\xff\xfe{")}
JOURNALS = {
    "text": ("events.jsonl", "steps.jsonl", "evaluations.jsonl", "quarantine.jsonl", "timeline.jsonl"),
    "preferences": ("events.jsonl", "steps.jsonl", "timeline.jsonl"),
    "tabular": ("events.jsonl", "timeline.jsonl"),
    "command": ("events.jsonl", "progress.jsonl"),
}


def tear(file: Path, how: str) -> None:
    cut, behind = TORN[how]
    file.write_bytes(file.read_bytes()[:-cut] + behind)


@pytest.mark.parametrize("how", TORN)
@pytest.mark.parametrize("rows", [0, 1, 3, 400])
def test_whoever_appends_heals_the_tail_first(tmp_path: Path, how: str, rows: int) -> None:
    file = tmp_path / "journal.jsonl"
    for number in range(rows + 1):
        append_line(file, {"number": number, "text": "x" * 40})
    tear(file, how)
    assert [row["number"] for row in read_lines(file)] == list(range(rows)), "a reader skips what is torn"
    assert append_line(file, {"number": rows}) > 0
    assert [row["number"] for row in lines(file)] == list(range(rows + 1)), "every line is whole"
    assert (last_line(file) or {})["number"] == rows and cut_torn_line(file) == 0
    assert append_line(file, {"number": rows + 1}) == 0


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, "short") for kind in JOURNALS),
        ("text", "zeros"),
        *(pytest.param(kind, how, marks=pytest.mark.long) for kind in JOURNALS for how in ("no line end", "other bytes")),
    ],
)
def test_a_run_whose_journals_are_all_torn_ends_with_the_same_bits(tmp_path: Path, kind: str, how: str) -> None:
    name = f"{kind}-unfinished"
    inputs = settle(tmp_path, name)
    run = tmp_path / "runs" / name
    for journal in JOURNALS[kind]:
        if (run / journal).exists() and (journal != "timeline.jsonl" or len(lines(run / journal)) == 1):
            tear(run / journal, how)
    done = holdfast(*command_of(kind, run), cwd=inputs)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished" and (run / "report.html").exists()
    for file in run.glob("*.jsonl"):
        lines(file)  # every line of each is whole
    told = {event["file"] for event in lines(run / "events.jsonl") if event["event"] == "torn_line_cut"}
    assert "events.jsonl" in told
    if kind != "command":
        check_bits(kind, summary["artifact_sha256"], [row["loss"] for row in lines(run / "steps.jsonl")])


@pytest.mark.parametrize("left", [None, b"", b"{"])
def test_a_lost_name_of_a_run_is_taken_from_its_checkpoints(tmp_path: Path, left: bytes | None) -> None:
    inputs = settle(tmp_path, "text-unfinished")
    run = tmp_path / "runs" / "text-unfinished"
    name = json.loads((run / "run.json").read_text())["id"]
    (run / "run.json").unlink()
    if left is not None:
        (run / "run.json").write_bytes(left)
    done = holdfast(*command_of("text", run), cwd=inputs)
    assert done.returncode == 0, done.stderr
    assert "run.json was missing or damaged" in done.stderr and json.loads((run / "run.json").read_text())["id"] == name
    check_bits("text", json.loads(done.stdout)["artifact_sha256"], [row["loss"] for row in lines(run / "steps.jsonl")])


@pytest.mark.parametrize("garbage", [b"{\n", b'{"time":1}{"event":"x"}\n', b"\0\0\0\n", b"[1]\n", b"\xff\xfe\n", b"{}\n"])
def test_a_damaged_line_of_the_events_is_named_and_ends_nothing(tmp_path: Path, garbage: bytes) -> None:
    inputs = settle(tmp_path, "tabular-unfinished")
    run = tmp_path / "runs" / "tabular-unfinished"
    whole = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join([*whole[:1], garbage, *whole[1:]]))
    done = holdfast(*command_of("tabular", run), cwd=inputs)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    assert garbage == b"{}\n" or "events.jsonl: line 2" in done.stderr
