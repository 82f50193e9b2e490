"""The disk of a run folder that fills up while a command is watched over: real file systems; skipped where none can be mounted."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import events, fill, holdfast, lines, start, wait_until
from holdfast.base.files import append_line, write_json
from holdfast.run.folder import RunFolder
from holdfast.supervision.full_disk import BufferedRunFolder

STEPS = """
import pathlib, sys, time
place, last = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for step in range(1, last + 1):
    (place / "steps").write_text(f"{step}\\n")
    time.sleep(0.02)
    while step == last and not (place / "may_end").exists():
        time.sleep(0.02)
"""


def command(tmp_path: Path, run: Path) -> list[object]:
    """A command of 150 steps, told by a file on a disk that has room; it ends when it may."""
    (tmp_path / "steps.py").write_text(STEPS)
    return ["run", "--run", run, "--progress", tmp_path / "steps", "--", sys.executable, tmp_path / "steps.py", tmp_path, "150"]


def told(place: Path) -> int:
    try:
        return int((place / "steps").read_text() or 0)
    except FileNotFoundError:
        return 0


def fill_under(child: subprocess.Popen[str], disk: Path) -> Path:
    """Fill the disk, what is left of the last page of progress.jsonl included, while its supervisor stands still."""
    os.kill(child.pid, signal.SIGSTOP)
    filler, journal = fill(disk), disk / "run" / "progress.jsonl"
    row = json.dumps({"time": 0, "attempt": 1, "step": 0, "total": None, "source": "test", "more": ""})
    if (left := -journal.stat().st_size % 4096) > len(row):  # else it may end a page: there is no room for a row
        with journal.open("a") as handle:
            handle.write(row[:-2] + "x" * (left - len(row) - 1) + row[-2:] + "\n")
    os.kill(child.pid, signal.SIGCONT)
    return filler


def test_a_disk_that_fills_up_leaves_the_command_supervised_and_loses_no_row(small_disk: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    child = start(*command(tmp_path, run))
    wait_until(lambda: (run / "progress.jsonl").exists())
    filler = fill_under(child, small_disk)
    wait_until(lambda: told(tmp_path) == 150 or child.poll() is not None)
    filler.unlink()
    (tmp_path / "may_end").touch()
    output, _ = child.communicate()
    assert child.returncode == 0, output
    assert (
        f"the disk of {run} is full: what is written down of the run is kept in memory until there is room; supervision goes on" in output
    )
    assert "ended well: 150 steps" in output
    steps = [row["step"] for row in lines(run / "progress.jsonl") if row["source"] != "test"]
    again = steps[-2:] == [150, 150]  # the last step is noted at the end, whether a look had seen it or not
    assert steps[: -1 if again else None] == sorted(set(steps)) and steps[-1] == 150 and len(steps) > 4
    begun, over = events(run, "journals_kept"), events(run, "journals_written")
    assert len(begun) == len(over) == 1 and over[0]["lines"] >= 3
    assert any("is full" in row["text"] for row in lines(run / "told.jsonl"))
    assert len(events(run, "attempt_started")) == 1


def test_an_end_that_cannot_be_written_is_told_with_its_disk_and_taken_up_later(small_disk: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    words = command(tmp_path, run)
    child = start(*words)
    wait_until(lambda: (run / "progress.jsonl").exists())
    filler = fill(small_disk)
    wait_until(lambda: told(tmp_path) == 150 or child.poll() is not None)
    (tmp_path / "may_end").touch()
    output, _ = child.communicate()
    assert child.returncode == 3, output
    assert f"the disk of {run} is full: the command has ended with exit code 0, and that cannot be written down" in output
    assert "make room, then rerun the same command" in output
    assert not (run / "summary.json").exists()
    filler.unlink()
    done = holdfast(*words[:1], "--json", *words[1:])
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["status"], summary["steps"], summary["attempts"]) == ("finished", 150, 1)


def test_a_command_that_was_ended_on_a_full_disk_is_told_by_its_ending(small_disk: Path, tmp_path: Path) -> None:
    run = small_disk / "run"
    child = start(*command(tmp_path, run))
    wait_until(lambda: (run / "progress.jsonl").exists())
    fill(small_disk)
    os.kill(json.loads((run / "attempts/001/rank0.json").read_text())["identity"]["pid"], signal.SIGKILL)
    output, _ = child.communicate()
    assert child.returncode == 3, output
    assert f"the disk of {run} is full" in output and "SIGKILL" in output


def test_a_supervisor_keeps_the_lines_that_its_disk_does_not_take_in_their_order(small_disk: Path) -> None:
    heard: list[str] = []
    run = BufferedRunFolder(small_disk, heard.append)
    run.event("first")
    fill(small_disk)
    while not run.waiting:
        run.event("many", text="x" * 500)
    run.event("last")
    assert [event["event"] for event in run.events()][-1] == "last", "what waits is known all the same"
    assert [event["event"] for event in RunFolder(small_disk).events()][-1] == "many"
    (small_disk / "filler").unlink()
    assert run.flush()
    kinds = [event["event"] for event in RunFolder(small_disk).events()]
    assert kinds[0] == "first" and kinds[-3:] == ["journals_kept", "last", "journals_written"]
    assert len(heard) == 2 and f"the disk of {small_disk} is full" in heard[0] and "has room again" in heard[1]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.EFBIG, errno.ESTALE])
def test_lines_wait_whatever_the_reason_why_a_disk_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(file: Path, row: object, durable: bool = False) -> int:
        raise OSError(number, os.strerror(number), str(file))

    heard: list[str] = []
    run = BufferedRunFolder(tmp_path, heard.append)
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.supervision.full_disk.append_line", refuse)
        patched.setattr("holdfast.run.folder.append_line", refuse)
        run.event("one")
        run.event("two")
    assert [event["event"] for event in run.events()] == ["one", "journals_kept", "two"] and "is full" not in heard[0]
    assert run.flush() and "can be written again" in heard[1]
    assert [event["event"] for event in RunFolder(tmp_path).events()] == ["one", "journals_kept", "two", "journals_written"]


def test_a_file_of_another_user_is_no_disk_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path, row: object, durable: bool = False) -> int:
        raise PermissionError(errno.EPERM, "is not this user's own file", str(file))

    monkeypatch.setattr("holdfast.run.folder.append_line", refuse)
    with pytest.raises(PermissionError, match="own file"):
        BufferedRunFolder(tmp_path, lambda _: None).event("one")


@pytest.mark.parametrize("durable", [True, False])
def test_an_error_of_a_full_disk_names_the_file(small_disk: Path, durable: bool) -> None:
    journal = small_disk / "journal.jsonl"
    fill(small_disk)
    with pytest.raises(OSError, match="No space left") as whole:
        write_json(small_disk / "whole.json", {"text": "x" * 5000}, durable)
    assert whole.value.filename == str(small_disk / "whole.json")
    with pytest.raises(OSError, match="No space left") as line:
        append_line(journal, {"text": "x"}, durable)
    assert line.value.filename == str(journal)


def onto_full_disk(*words: object, stream: str = "stdout") -> tuple[int, str]:
    """Run a command with an output on a disk without room; its exit code and what it said on the other."""
    command = [sys.executable, "-m", "holdfast", *map(str, words)]
    with Path("/dev/full").open("wb") as full:
        outputs: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        done = subprocess.run(command, text=True, stdin=subprocess.DEVNULL, check=False, **outputs)
    return done.returncode, done.stderr if stream == "stdout" else done.stdout


@pytest.mark.parametrize("words", [("models",), ("models", "--json"), ("schema",)])
def test_an_answer_that_no_disk_takes_is_told(words: tuple[str, ...]) -> None:
    code, said = onto_full_disk(*words)
    assert code == 1 and "no room on the disk of standard output" in said and "->" in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("words", "code"),
    [
        *((("models",), 0), (("models", "--json"), 0), (("schema", "--json"), 0), (("--help",), 0), (("doctor", "--no-probe"), 0)),
        *((("status", "none"), 2), (("status", "none", "--json"), 2)),
    ],
)
def test_a_pipe_that_nobody_reads_is_no_error(words: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """`holdfast models | head -c 0` printed a traceback and ended with 120, `holdfast doctor | head -c 0` with 1."""
    command, folder = [sys.executable, "-m", "holdfast", *words], {"cwd": tmp_path, "stdin": subprocess.DEVNULL}
    reader, writer = os.pipe()
    os.close(reader)
    for outputs in ({"stdout": writer, "stderr": subprocess.PIPE}, {"stdout": writer, "stderr": writer}):
        done = subprocess.run(command, text=True, check=False, **folder, **outputs)
        assert done.returncode == code and "Traceback" not in (done.stderr or ""), done.stderr
    os.close(writer)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_no_command(closed: str, tmp_path: Path) -> None:
    """`holdfast init` asked a closed standard input whether it was a terminal, and ended with 70."""
    words = [sys.executable, "-m", "holdfast", "init", "--model", "none", "--data", "none.jsonl", "--out", "out.yaml"]
    done = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *words], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr, done.stderr


def test_a_log_on_a_full_disk_ends_no_run(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of("run", train={"steps": 3}, run={"standby": False})
    code, said = onto_full_disk("train", config, "--run", tmp_path / "one")
    assert code == 1 and "what it did is done" in said
    code, said = onto_full_disk("train", config, "--run", tmp_path / "two", "--json", stream="stderr")
    assert code == 0 and json.loads(said)["status"] == "finished"
    assert [json.loads((tmp_path / name / "summary.json").read_text())["status"] for name in ("one", "two")] == ["finished"] * 2
    code, said = onto_full_disk("export", tmp_path / "one", "--to", "adapter", "--out", tmp_path / "out")
    assert code == 1 and "what it did is done" in said and (tmp_path / "out" / "adapter_model.safetensors").exists()
