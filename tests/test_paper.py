"""The nouns and their files: whole or absent writes, journals, step table, schedule, timeline, snapshots, faults."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import main
from holdfast.core.config.faults import Fault, Moment, When, fires
from holdfast.core.files import Tail, append_line, cut_torn_line, last_line, read_lines, write_bytes
from holdfast.core.order.step_table import StepTable, learning_rate, run_length, split_rows
from holdfast.core.run.bell import hang_up, ring, silence
from holdfast.core.run.memory_file import MemoryFile, memory_places, sweep
from holdfast.core.run.timeline import settings_at
from holdfast.core.wait import wait_for_end

# ---- files


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
        "import sys; from pathlib import Path; from holdfast.core.files import write_bytes\n"
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


def test_a_damaged_line_inside_a_journal_is_named(tmp_path: Path) -> None:
    journal = tmp_path / "j.jsonl"
    journal.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        list(read_lines(journal))


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_bytes(tmp_path / "folder", b"x")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


# ---- step table and schedule


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 1000), st.integers(1, 4))
def test_every_epoch_sees_every_row_once(rows: int, batch: int, seed: int, epochs: int) -> None:
    steps, samples = run_length(rows, batch, epochs, None)
    table = StepTable(np.arange(100, 100 + rows), batch, seed)
    drawn = [number for step in range(1, steps + 1) for number in table.samples(step, samples)]
    assert len(drawn) == rows * epochs
    for epoch in range(epochs):
        assert sorted(drawn[epoch * rows : (epoch + 1) * rows]) == list(range(100, 100 + rows))


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 9), st.integers(1, 3), st.integers(1, 3))
def test_an_extended_run_sees_every_row_of_every_epoch_once(rows: int, batch: int, seed: int, epochs: int, more: int) -> None:
    table = StepTable(np.arange(rows), batch, seed)
    steps, samples = run_length(rows, batch, epochs, None)
    drawn = [number for step in range(1, steps + 1) for number in table.samples(step, samples)]
    behind = steps * batch - samples
    longer, all_samples = run_length(rows, batch, epochs + more, None, behind)
    drawn += [number for step in range(steps + 1, longer + 1) for number in table.samples(step, all_samples, behind)]
    whole = StepTable(np.arange(rows), len(drawn), seed)
    assert len(drawn) == rows * (epochs + more) and drawn == whole.samples(1, len(drawn))
    assert run_length(rows, batch, None, longer + 1, behind) == (longer + 1, (longer + 1) * batch - behind)


def test_the_order_depends_on_seed_and_epoch_and_never_changes() -> None:
    table = StepTable(np.arange(8), 8, 0)
    assert table.samples(1, 16) == [0, 2, 1, 5, 4, 3, 6, 7], "runs made by earlier versions could not be resumed"
    assert table.samples(2, 16) != table.samples(1, 16)
    assert StepTable(np.arange(8), 8, 1).samples(1, 16) != table.samples(1, 16)
    with pytest.raises(IndexError):
        table.samples(3, 16)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 12), st.integers(1, 200), st.integers(0, 99))
def test_the_largest_step_of_a_run_is_known_before_it_begins(lengths: list[int], batch: int, samples: int, seed: int) -> None:
    table = StepTable(np.arange(len(lengths)), batch, seed)
    samples = min(samples, 10 * len(lengths))  # as far as it looks
    tokens = [sum(lengths[row] for row in table.samples(step, samples)) for step in range(1, -(-samples // batch) + 1)]
    step, largest = table.largest_step(np.array(lengths), samples)
    assert (largest, tokens[step - 1]) == (max(tokens), max(tokens))
    assert table.largest_step(np.array(lengths))[1] >= largest, "of a run without end"


@given(st.integers(1, 500), st.floats(0, 0.5), st.integers(0, 99))
def test_rows_are_split_into_two_parts_without_loss(rows: int, share: float, seed: int) -> None:
    training, held_out = split_rows(rows, share, seed)
    assert sorted([*training, *held_out]) == list(range(rows))
    assert len(training)
    assert share > 0 or not len(held_out)
    assert abs(len(held_out) - share * rows) <= 1


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 2, [0.5, 1, 1, 0.5]),
        ("cosine", 0.5, [0.5, 1, 1, 0.5]),
        ("constant", 9, [0.25, 0.5, 0.75, 1]),
    ],
)
def test_the_learning_rate_warms_up_and_falls(schedule: str, warmup: float, expected: list[float]) -> None:
    assert [learning_rate(step, 4, 1.0, schedule, warmup) for step in range(1, 5)] == pytest.approx(expected)


def test_the_timeline_gives_the_settings_in_force() -> None:
    entries = [{"from_step": 1, "settings": {"a": 1, "b": 1}}, {"from_step": 5, "settings": {"b": 2}}]
    assert settings_at(entries, 4) == {"a": 1, "b": 1}
    assert settings_at(entries, 5) == {"a": 1, "b": 2}


# ---- the shared-memory file


def take(memory: MemoryFile, step: int, pin: bool = False) -> int:
    slot = memory.free_slot()
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


# ---- the fault language

HERE: dict[str, Any] = {
    "phase": "forward",
    "attempt": 2,
    "step": 5,
    "tokens": 410,
    "samples": ("/data/rows.jsonl:17",),
    "count": 14,
    "settings": {"attention": "sdpa", "dtype": "bf16"},
    "env": {"A": "1"},
}


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({}, True),
        ({"tokens": (400, 410)}, True),
        ({"tokens": (411, 500)}, False),
        ({"setting": {"attention": "sdpa", "dtype": "bf16"}}, True),
        ({"setting": {"attention": "eager"}}, False),
        ({"step": 5, "attempt": 2}, True),
        ({"step": 5, "attempt": 1}, False),
        ({"sample": "rows.jsonl:17"}, True),
        ({"sample": "/data/rows.jsonl:17"}, True),
        ({"sample": "ows.jsonl:17"}, False),
        ({"sample": "rows.jsonl:1"}, False),
        ({"env": {"A": "1", "B": None}}, True),
        ({"env": {"A": None}}, False),
        ({"every": 7}, True),
        ({"every": 4}, False),
        ({"rank": 1}, False),
        ({"phase": "optimizer"}, False),
        ({"probability": 1.0}, True),
        ({"probability": 0.0}, False),
    ],
)
def test_all_conditions_of_a_fault_must_hold(when: dict[str, Any], expected: bool) -> None:
    assert fires(Fault(when=When(**when), effect="kill"), Moment(**HERE)) is expected


def test_a_probability_is_met_as_often_as_it_says() -> None:
    fault = Fault(when=When(probability=0.3), effect="kill")
    hits = Counter(fires(fault, Moment(**(HERE | {"count": count}))) for count in range(4000))
    assert hits[True] / 4000 == pytest.approx(0.3, abs=0.04)


def test_checkpoint_effects_belong_to_the_writer() -> None:
    fault = Fault(effect="torn_checkpoint")
    assert not fires(fault, Moment(**HERE))
    assert fires(fault, Moment("save", 1, step=5))
    with pytest.raises(ValueError, match="its phase can only be save"):
        Fault(effect="torn_checkpoint", when=When(phase="forward"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names for sockets that leave no file")
def test_a_bell_wakes_who_waits_and_belongs_to_one(tmp_path: Path) -> None:
    file = tmp_path / "holdfast-1234.rank0"
    ring(file)  # nobody waits yet
    bell = hang_up(file)
    assert bell is not None and hang_up(file) is None
    assert not wait_for_end([os.getpid()], 0.0, bell) and not select.select([bell], [], [], 0)[0]
    threading.Timer(0.2, ring, (file,)).start()
    assert not wait_for_end([os.getpid()], 3600, bell), "woken, and not because a process has ended"
    silence(bell)
    assert not select.select([bell], [], [], 0)[0]
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert wait_for_end([child.pid], 3600, bell)
    child.wait()
    bell.close()
    assert list(tmp_path.iterdir()) == []


def test_snapshots_of_removed_runs_are_shown_and_removed_by_the_next_start_of_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shm"
    shared.mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("chat", "status", "train", "trial"):
        monkeypatch.setattr(f"holdfast.verbs.{name}.SHARED_MEMORY", shared)
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
