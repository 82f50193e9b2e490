"""The shared-memory file: snapshots, pins, the pulse, what is swept up."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import memory_places, sweep


def take(memory: MemoryFile, step: int, pin: bool = False) -> int:
    slot = memory.free_slot()
    assert slot is not None
    memory.begin(slot)
    artifact, state = memory.payload_offsets(slot)
    memory.memory[artifact : artifact + 100] = bytes([step]) * 100
    memory.memory[state : state + 5000] = bytes([step]) * 5000
    memory.seal(slot, step, step, {"step": step}, pin)
    return slot


@pytest.fixture
def memory(tmp_path: Path) -> MemoryFile:
    return MemoryFile.create(tmp_path / "m", tmp_path, 100, 5000)


def test_the_newest_snapshot_survives_while_the_next_is_written(memory: MemoryFile) -> None:
    assert memory.newest() is None
    for step in range(1, 8):
        take(memory, step)
        newest = memory.newest()
        assert newest is not None
        assert (newest.step, newest.artifact, newest.state) == (step, bytes([step]) * 100, bytes([step]) * 5000)
        half = memory.free_slot()
        assert half is not None
        memory.begin(half)
        assert memory.newest() == newest


def test_a_snapshot_whose_bytes_changed_is_passed_over(memory: MemoryFile) -> None:
    take(memory, 1)
    slot = take(memory, 2)
    at = memory.payload_offsets(slot)[1]
    memory.memory[at + 17] ^= 1
    newest = memory.newest()
    assert newest is not None
    assert newest.step == 1


def test_a_pinned_snapshot_is_kept_until_it_is_written(memory: MemoryFile) -> None:
    pinned = take(memory, 1, pin=True)
    for step in range(2, 9):
        take(memory, step)
    assert [header.step for header in memory.pinned_headers()] == [1]
    memory.unpin(pinned)
    take(memory, 9)
    take(memory, 10)
    assert all(header.step != 1 for index in range(3) if (header := memory.header(index)))


def test_the_third_slot_takes_room_when_a_pinned_one_makes_it_needed(tmp_path: Path) -> None:
    size = 1 << 20
    file = MemoryFile.create(tmp_path / "lean", tmp_path, 100, size, spare=False)
    whole = MemoryFile.create(tmp_path / "whole", tmp_path, 100, size)

    def taken() -> float:
        return file.path.stat().st_blocks * 512 / size

    assert file.path.stat().st_size == whole.path.stat().st_size and taken() < 3 < whole.path.stat().st_blocks * 512 / size
    assert {take(file, step) for step in range(1, 9)} == {0, 1} and taken() < 3
    pinned = take(file, 9, pin=True)
    take(file, 10)
    assert take(file, 11) == 2 and taken() > 3
    file.renew(tmp_path)
    again = MemoryFile.open(file.path)
    assert again is not None and again.newest() == file.newest() and taken() > 3 and again.pinned(pinned)
    file.unpin(pinned)
    assert {take(file, step) for step in range(12, 20)} == {0, 1}
    take(whole, 1)
    whole.path.unlink()
    whole.renew(tmp_path)
    assert whole.path.stat().st_blocks * 512 / size > 3, "a card's driver pins all of it: what had room has it again"


def test_without_room_for_a_third_slot_none_is_given_and_nobody_meets_what_has_no_memory(small_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        MemoryFile.create(small_disk / "whole", small_disk, 100, 1 << 20)
    assert not list(small_disk.iterdir())
    file = MemoryFile.create(small_disk / "lean", small_disk, 100, 1 << 20, spare=False)
    take(file, 1, pin=True)
    take(file, 2)
    assert file.free_slot() is None and file.newest_header() is not None
    file.unpin(0)
    assert take(file, 3) == 0
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    file.pin(0)
    take(file, 4)
    assert file.free_slot() == 2


def test_an_existing_file_keeps_its_snapshots_and_another_layout_replaces_it(memory: MemoryFile) -> None:
    take(memory, 3)
    again = MemoryFile.create(memory.path, memory.path.parent, 100, 5000)
    assert again.newest() is not None
    assert MemoryFile.create(memory.path, memory.path.parent, 100, 6000).newest() is None


def test_memory_files_of_deleted_runs_are_swept_up_and_others_stay(tmp_path: Path) -> None:
    for name, owner in (("a", tmp_path / "deleted run"), ("b", tmp_path)):
        MemoryFile.create(tmp_path / f"holdfast-{name}.rank0", owner, 100, 100)
    (tmp_path / "holdfast-c.rank0").write_bytes(b"somebody else's")
    assert sweep(tmp_path) == [tmp_path / "holdfast-a.rank0"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["holdfast-b.rank0", "holdfast-c.rank0"]


@pytest.mark.parametrize("content", [b"", b"HOLDFAST", os.urandom(50_000)])
def test_a_foreign_file_is_no_memory_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert MemoryFile.open(tmp_path / "x") is None


def test_the_pulse_is_whole_or_absent(memory: MemoryFile) -> None:
    assert memory.pulse() is None
    memory.beat({"step": 4})
    assert memory.pulse() == {"step": 4}
    assert [memory.count_micro_batch() for _ in range(3)] == [1, 2, 3]
    assert memory.pulse() == {"step": 4}


def test_a_copied_run_folder_has_a_snapshot_of_its_own() -> None:
    first, second = (memory_places(Path(f"/runs/{name}"), "0" * 32, None, False) for name in "ab")
    assert not set(first) & set(second)


def test_snapshots_of_removed_runs_are_shown_and_removed_by_the_next_start_of_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "status", "train", "trial"):
        monkeypatch.setattr(f"holdfast.cli.commands.{name}.SHARED_MEMORY", shared)
    for name in ("gone", "kept"):
        (tmp_path / name).mkdir()
        MemoryFile.create(shared / f"holdfast-{name}.rank0", tmp_path / name, 100, 5000)
    assert main(["status"]) == 0
    assert "removed runs" not in capsys.readouterr().out
    (tmp_path / "gone").rmdir()
    (shared / "holdfast-other.rank0").write_bytes(b"no snapshot")
    os.mkfifo(shared / "holdfast-pipe.rank0")
    assert main(["status", "--json"]) == 0
    (left,) = json.loads(capsys.readouterr().out)["abandoned_snapshots"]
    assert left["file"] == str(shared / "holdfast-gone.rank0") and left["bytes"] > 5000
    assert main(["status"]) == 0
    assert f"! 1 snapshot of removed runs, 0.8 MiB in {shared}: the next" in capsys.readouterr().out
    assert main(["trial", str(tmp_path / "kept"), "--step", "1"]) == 2, "no run lies there, but it is a start"
    assert sorted(file.name for file in shared.iterdir()) == [f"holdfast-{name}.rank0" for name in ("kept", "other", "pipe")]


def test_a_file_that_gets_no_room_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, size: int) -> None:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "ftruncate", refuse)
    with pytest.raises(OSError) as refused:
        MemoryFile.create(tmp_path / "m", tmp_path, 100, 5000)
    assert refused.value.filename == str(tmp_path / "m") and list(tmp_path.iterdir()) == []
