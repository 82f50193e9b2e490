"""Whole or absent writes, journals and their torn last lines."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from conftest import holdfast
from holdfast.base import cache
from holdfast.base.cache import read_kept, write_kept
from holdfast.base.child import module_command
from holdfast.base.disk import flush_tree
from holdfast.base.errors import DamagedFile
from holdfast.base.file_errors import current_folder, file_error_in
from holdfast.base.files import Tail, append_line, cut_torn_line, fsync_folder, last_line, read_lines, read_sound_lines, sha256, write_bytes
from holdfast.base.safe_open import read_small
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.trainer import __main__ as trainer


def test_a_journal_is_read_on_from_where_it_was_read_to(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    tail = Tail(journal)
    assert tail.new() == ([], False)
    append_line(journal, {"n": 1})
    assert tail.new()[0] == [{"n": 1}]
    append_line(journal, {"n": 2})
    with journal.open("ab") as handle:
        handle.write(b'{"n": 3')
    assert tail.new() == ([{"n": 2}], False)
    with journal.open("ab") as handle:
        handle.write(b"}\n")
    assert tail.new() == ([{"n": 3}], False) and tail.new() == ([], False)
    longer = b"".join(b'{"n": %d}\n' % n for n in range(7, 20))
    write_bytes(journal, longer)
    found, another = tail.new()
    assert another and [row["n"] for row in found] == list(range(7, 20)), "it was replaced, and is longer than before"
    with journal.open("r+b") as handle:
        handle.truncate(9)
    assert tail.new() == ([{"n": 7}], True)
    journal.unlink()
    assert tail.new() == ([], True) and tail.new() == ([], False)


def test_a_write_killed_at_any_moment_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(b"old" * 1000)
    program = (
        "import sys; from pathlib import Path; from holdfast.base.files import write_bytes\n"
        "while True: write_bytes(Path(sys.argv[1]), b'new' * 1000)"
    )
    for pause in (0.15, 0.2, 0.25):
        child = subprocess.Popen([sys.executable, "-c", program, str(file)])
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(pause)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert file.read_bytes() in (b"old" * 1000, b"new" * 1000)


def test_a_journal_is_read_up_to_its_torn_last_line(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    append_line(journal, {"step": 1})
    append_line(journal, {"step": 2})
    with journal.open("ab") as handle:
        handle.write(b'{"step": 3')
    assert list(read_lines(journal)) == [{"step": 1}, {"step": 2}]
    assert last_line(journal) == {"step": 2}
    assert cut_torn_line(journal) == 10
    append_line(journal, {"step": 3})
    assert [entry["step"] for entry in read_lines(journal)] == [1, 2, 3]


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("size", [10, 4_090, 4_096, 40_000])
def test_the_last_line_is_found_however_long_it_is(tmp_path: Path, size: int, before: int) -> None:
    journal = tmp_path / "j.jsonl"
    for step in range(before):
        append_line(journal, {"step": step})
    assert last_line(journal) == ({"step": before - 1} if before else None)
    append_line(journal, {"words": "x" * size})
    assert last_line(journal) == {"words": "x" * size}


def test_what_a_program_left_behind_the_last_line_is_looked_through_and_not_kept(tmp_path: Path) -> None:
    """2 GB of zeros in place of steps.jsonl took `status`, `attach` and `stop` 2.1 GB of memory."""
    journal, behind = tmp_path / "j.jsonl", 1 << 28
    append_line(journal, {"step": 1})
    append_line(journal, {"step": 2})
    whole = journal.stat().st_size
    os.truncate(journal, whole + behind)
    tracemalloc.start()
    try:
        assert last_line(journal) == {"step": 2}
        tail = Tail(journal)
        assert tail.new() == ([{"step": 1}, {"step": 2}], True) and tail.new() == ([], False)
        assert cut_torn_line(journal) == behind
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < behind // 16
    append_line(journal, {"step": 3})
    assert tail.new() == ([{"step": 3}], False) and last_line(journal) == {"step": 3}
    journal.write_bytes(bytes(1 << 20))
    assert last_line(journal) is None


def test_a_damaged_line_inside_a_journal_is_named(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    journal.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_lines(journal))


@pytest.mark.parametrize("ends", [False, True], ids=["torn", "whole"])
def test_an_endless_line_of_a_journal_is_not_kept_and_hides_no_line_behind_it(tmp_path: Path, ends: bool) -> None:
    """One line of 256 MiB was kept whole, and what stood behind a longer one was taken for missing."""
    journal, long = tmp_path / "j.jsonl", (1 << 28) + 5
    append_line(journal, {"step": 1})
    os.truncate(journal, journal.stat().st_size + long)
    if ends:
        with journal.open("ab") as file:
            file.write(b'\n{"step": 3}\n')
    tracemalloc.start()
    try:
        if ends:
            with pytest.raises(DamagedFile, match="line 2 has more than 64 MiB"):
                list(read_lines(journal))
        found = list(read_sound_lines(journal))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [{"step": 1}, *[{"step": 3}] * ends] and most < long * 5 // 8  # of one line, a block that grows


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_bytes(tmp_path / "folder", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """`--rejects /dev/null` as root, as most containers are."""
    (rows := tmp_path / "rows.jsonl").write_text('{"prompt": "p", "completion": "c"}\n')
    os.mkfifo(tmp_path / "pipe")
    places = [tmp_path / "pipe"]
    if os.geteuid() == 0:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        places.append(tmp_path / "null")
    for place in places:
        before = place.lstat().st_ino
        done = holdfast("data", "clean", rows, "--out", tmp_path / "clean.jsonl", "--rejects", place)
        assert done.returncode == 1 and f"{place} is a device, pipe or socket" in done.stderr, done.stderr
        assert place.lstat().st_ino == before and not stat.S_ISREG(place.lstat().st_mode)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["rows.jsonl", *(place.name for place in places)])


def test_an_error_in_the_middle_of_reading_names_the_file() -> None:
    """The kernel refuses to read address 0 of a process's memory (EIO); the file was opened well."""
    memory = Path("/proc/self/mem")
    for read in (read_small, sha256, lambda file: [*read_lines(file)]):
        with pytest.raises(OSError, match="Input/output") as failed:
            read(memory)
        assert failed.value.filename == str(memory)


def test_an_error_of_a_flush_names_what_was_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    (tmp_path / "file").touch()
    for flush, place in ((fsync_folder, tmp_path), (flush_tree, tmp_path / "file")):
        with pytest.raises(OSError, match="Input/output") as failed:
            flush(tmp_path)
        assert failed.value.filename == str(place)


@pytest.mark.parametrize(
    ("kind", "status", "told"),
    [("EIO", "finished", True), ("ENOSPC", "finished", True), ("EIO", "gave_up", False), ("EACCES", "finished", False)],
)
def test_one_file_that_a_disk_does_not_take_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, status: str, told: bool
) -> None:
    """A run is not called finished when its disk has lost a file; a file that may not be read is no loss."""
    flushed: list[str] = []

    def fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if name == "b":
            raise OSError(getattr(errno, kind), "told by the disk")
        flushed.append(name)

    for name in "abc":
        (tmp_path / name).touch()
    monkeypatch.setattr(os, "fsync", fsync)
    if told:
        with pytest.raises(OSError, match="told by the disk"):
            RunFolder(tmp_path).flush_all(status)
    else:
        RunFolder(tmp_path).flush_all(status)
    assert sorted(flushed) == sorted(["a", "c", tmp_path.name, tmp_path.parent.name])


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("Traceback\nOSError: [Errno 5] Input/output error: '/m/x.json'\n", "the disk of /m/x.json fails to read or write"),
        ("PermissionError: [Errno 13] Permission denied: '/a b' -> '/c'", "/a b may not be read or written by this user"),
        ("OSError: [Errno 24] Too many open files", "this process may not open more files"),
        ("RuntimeError: unable to open file </m/x> in read-only mode: Input/output error (5)", "the disk of /m/x fails to read or write"),
        ("OSError: [Errno 5] Input/output error: '/m/x.json'\ntraining went on", ""),
        ("ValueError: [Errno] nothing", ""),
        ("", ""),
    ],
)
def test_the_error_of_a_file_that_a_child_printed_last_is_told_in_our_words(printed: str, says: str) -> None:
    found = file_error_in(printed)
    assert (found is None) if not says else (found is not None and found.message.startswith(says) and bool(found.hint))


def test_what_the_cache_holds_is_made_anew_where_its_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_kept(tmp_path / "deep" / "kept.json", {"a": 1})
    assert read_kept(tmp_path / "deep" / "kept.json") == {"a": 1} and read_kept(None) is None

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(cache, "read_json", fails)
    monkeypatch.setattr(cache, "write_json", fails)
    assert read_kept(tmp_path / "deep" / "kept.json") is None
    write_kept(tmp_path / "deep" / "kept.json", {"a": 2})


def test_a_current_folder_that_was_removed_under_a_run_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command had ended well, and its supervisor with "the current folder was removed" and exit code 1."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = shown(tmp_path / "here/run")
    (tmp_path / "here").rmdir()
    after = shown(tmp_path / "run")
    command = module_command("holdfast.processes.shim", tmp_path / "attempt")
    monkeypatch.chdir(tmp_path)
    assert (before, after) == ("run", str(tmp_path / "run"))
    assert command[-2:] == ["holdfast.processes.shim", str(tmp_path / "attempt")]


def test_a_trainer_that_starts_in_a_folder_that_is_gone_goes_to_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers asks for the current folder when it is imported: each attempt after the removal failed, and the run was given up."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    monkeypatch.setattr(trainer, "MANAGEMENT", ())
    with pytest.raises(SystemExit):
        trainer.main(["no job"])
    after = current_folder()
    monkeypatch.chdir(tmp_path)
    assert after == Path("/")
