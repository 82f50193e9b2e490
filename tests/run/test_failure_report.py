"""What the kernel said of a death is in its failure report, and counts: OOM kills, device resets; what cannot be read is unknown."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from conftest import fill
from holdfast.base import errors
from holdfast.base.files import Json, append_line, read_json, write_json
from holdfast.book import cards_of
from holdfast.diagnosis.diagnose import diagnose, diagnose_failure
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from holdfast.machine import clock, kernel_log
from holdfast.machine.kernel_log import kernel_messages, marks, oom_kills_between, records
from holdfast.machine.place import Place
from holdfast.processes import shim
from holdfast.processes.attempt import Attempt
from holdfast.processes.standby import Standby
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import OUTCOMES, EndingKind, exit_code, kind_by_code
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import of_rank
from holdfast.run.types import Ending, FailureReport
from holdfast.supervision.evidence import collect
from holdfast.supervision.full_disk import BufferedRunFolder
from support.world import commit, left_behind, new_run, relaunch

KILLED = "Out of memory: Killed process 4711 (python) total-vm:9123456kB, anon-rss:6234567kB"


def failure_report(code: int = -9, **changes: Any) -> FailureReport:
    facts: dict[str, Any] = {"attempt": 1, "ending": Ending("killed", code), "step": 3, "phase": "step", "samples": (), "lines": ()}
    facts |= {"committed_before": 2, "committed_after": 2, "died": 0.0, "memory_available_bytes": 8 << 30, "disk_free_bytes": 8 << 30}
    return FailureReport(**(facts | {"pid": 4711} | changes))


def test_a_kill_for_memory_is_told_from_a_kill_by_somebody() -> None:
    cards = cards_of("failures")
    assert diagnose_failure(failure_report(), cards).cause == "unknown"
    assert diagnose_failure(failure_report(kernel_messages=(KILLED,)), cards).cause == "host_out_of_memory"
    assert diagnose_failure(failure_report(kernel_messages=(KILLED.replace("4711", "12"),)), cards).cause == "unknown", "another process"
    assert diagnose_failure(failure_report(oom_kills=1), cards).cause == "host_out_of_memory"
    assert diagnose_failure(failure_report(oom_kills=0), cards).cause == "unknown"
    assert diagnose_failure(failure_report(oom_kills=-3), cards).cause == "unknown", "as runs of before hold it, counted on two boots"
    told = failure_report(
        1, ending=Ending("error", 1), lines=("E1124 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 8354) of binary: python",)
    )
    assert diagnose_failure(replace(told, oom_kills=0), cards).cause == "unknown", "by a launcher's word"
    assert diagnose_failure(replace(told, oom_kills=1), cards).cause == "host_out_of_memory"


@pytest.mark.parametrize("ending", [Ending("killed", -15), Ending("error", 143)])
def test_a_signal_that_others_send_is_no_fault_of_the_launch(ending: Ending) -> None:
    cards = cards_of("failures")
    found = diagnose_failure(failure_report(ending=ending), cards)
    assert found.cause == "unknown" and "ended by signal 15 (SIGTERM) from outside" in found.explanation
    sent = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 8948 got signal: 15"
    found = diagnose_failure(failure_report(1, ending=Ending("error", 1), lines=(sent,)), cards)
    assert found.cause == "unknown" and "sent a signal to end from outside" in found.explanation, "a launcher that exits with 1"
    limit = "slurmstepd: error: *** JOB 4711 ON node3 CANCELLED AT 2026-05-03T12:00:00 DUE TO TIME LIMIT ***"
    assert diagnose_failure(failure_report(ending=ending, lines=(limit,)), cards).cards == ("launch-time-limit",)


def test_a_disk_with_room_that_takes_nothing_is_told_in_the_trainers_words() -> None:
    """A limit of the process (ulimit -f), or another disk: the room that is left explains nothing."""
    told = "the disk takes nothing: '/dev/shm/x' may not become as large as it has to be (File too large): raise the limit"
    died = failure_report(66, ending=Ending("disk_full", 66), lines=("a line", f"holdfast: {told}"))
    room = f"the disk of the run folder has {8 << 30:,} bytes free"
    assert diagnose_failure(died, cards_of("failures")).words() == (told, room)
    full = replace(died, disk_free_bytes=0)
    assert diagnose_failure(full, cards_of("failures")).words() == ("the disk of the run folder has 0 bytes free",)
    assert "full" not in died.ending.words()


def test_a_reset_of_the_card_that_only_the_kernel_told_is_the_cause() -> None:
    ring = "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=100, emitted seq=102"
    silent = failure_report(code=-6)
    assert diagnose_failure(silent, cards_of("failures")).cause != "driver_or_firmware"
    assert diagnose_failure(replace(silent, kernel_messages=(ring,)), cards_of("failures")).cause == "driver_or_firmware"


@pytest.mark.parametrize(
    ("group", "file"),
    [("0::/job", "sys/fs/cgroup/job/memory.events"), ("4:memory:/job", "sys/fs/cgroup/memory/job/memory.oom_control")],
)
def test_oom_kills_are_counted_in_both_kinds_of_control_groups(tmp_path: Path, group: str, file: str) -> None:
    for name, text in (("proc/self/cgroup", f"9:pids:/\n{group}\n"), (file, "low 0\noom 3\noom_kill 2\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert marks(Place(tmp_path))["oom_kills"] == 2
    assert oom_kills_between({"oom_kills": 0}, marks(Place(tmp_path))) == 2
    (tmp_path / file).unlink()
    assert marks(Place(tmp_path))["oom_kills"] is None
    assert oom_kills_between({"oom_kills": 0}, marks(Place(tmp_path))) is None


def test_kills_of_another_group_or_of_one_that_began_anew_are_none_of_the_attempts(tmp_path: Path) -> None:
    """As where the command is given again in another terminal, or its container or service was restarted."""
    group, events = tmp_path / "proc/self/cgroup", tmp_path / "sys/fs/cgroup/{}/memory.events"
    group.parent.mkdir(parents=True)

    def now(name: str, kills: int) -> Place:
        group.write_text(f"0::/{name}\n")
        file = Path(str(events).format(name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"oom_kill {kills}\n")
        return Place(tmp_path)

    before = marks(now("one", 2))
    assert oom_kills_between(before, marks(now("one", 3))) == 1
    assert oom_kills_between(before, marks(now("other", 3))) is None
    assert oom_kills_between(before, marks(now("one", 0))) is None
    assert oom_kills_between({"oom_kills": 2}, marks(now("one", 0))) is None, "of a run folder from before groups were told apart"


def test_records_of_the_kernels_ring_are_read_past_those_it_overwrote() -> None:
    ring = [
        b"4,1,1500000,-;amdgpu: ring timeout\n SUBSYSTEM=drm\n",
        BrokenPipeError(),
        b"6,9,2500000,-;EXT4-fs mounted\n",
        b"torn",
        BlockingIOError(),
    ]

    def read() -> bytes:
        record = ring.pop(0)
        if isinstance(record, bytes):
            return record
        raise record

    assert list(records(read)) == [(1.5, "amdgpu: ring timeout"), (2.5, "EXT4-fs mounted")]


def test_messages_from_before_an_attempt_are_not_its_own_though_the_machine_slept_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring's clock stands still in sleep: a message of the minute before looks as old as that minute, less the night."""
    ring = [b"4,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 13\n"]
    monkeypatch.setattr(kernel_log, "_ring", lambda device: list(records(iter([*ring, b""]).__next__)))
    started = 1e6
    monkeypatch.setattr(time, "monotonic", lambda: 61.0)
    monkeypatch.setattr(clock, "now", lambda: started + 8 * 3600)  # a minute of work and a night's sleep later
    before = {"logged": clock.of_this_boot("1.000000")}
    assert marks(Place(tmp_path))["logged"] == before["logged"]
    ring.append(b"4,2,60000000,-;NVRM: Xid (PCI:0000:3b:00): 79\n")
    assert kernel_messages(started, logged=(before["logged"], None)) == ("NVRM: Xid (PCI:0000:3b:00): 79",)
    assert len(kernel_messages(started, logged=("otherboot 1.0", None)) or ()) == 2


def test_unreadable_is_unknown_and_not_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kernel_messages(0.0, device=tmp_path / "none") is None
    journal = tmp_path / "journalctl"
    journal.write_text("#!/bin/sh\necho 'NVRM: Xid (PCI:0000:3b:00): 79'\necho 'something else'\n")
    journal.chmod(0o755)
    assert kernel_messages(0.0, device=tmp_path / "none") == ("NVRM: Xid (PCI:0000:3b:00): 79",)


def test_what_the_kernel_said_after_an_end_is_no_reason_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    journal = tmp_path / "journalctl"
    journal.write_text('#!/bin/sh\necho "i/o error asked for: $*"\n')
    journal.chmod(0o755)
    assert kernel_messages(1000.0, 2000.0, tmp_path / "none") == (
        "i/o error asked for: -k -q --no-pager -o cat --since @995 --until @2005",
    )


def ended(run: RunFolder, seen: Json | None, code: int | None = -9, **facts: Any) -> FailureReport:
    """The evidence of an attempt whose start counted three kills for memory; seen: what its shim wrote of its end."""
    attempt = left_behind(run, {"committed_before": 0, "oom_kills": 3, "started": clock.now() - 3600}, relaunch(run).settings)
    if seen is not None:
        write_json(attempt.folder / "ending.json", seen)
    return collect(attempt, run, Ending("killed" if seen else "vanished", code, facts=facts))


@pytest.mark.parametrize(("after", "kills", "cause"), [(3, 0, "unknown"), (4, 1, "host_out_of_memory"), (0, None, "unknown")])
def test_kills_for_memory_are_counted_at_the_end_and_not_where_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, kills: int | None, cause: str
) -> None:
    """The next supervisor may come days later, in another login, container or boot, whose own count says nothing of it."""
    monkeypatch.setattr("holdfast.supervision.evidence.host_memory", lambda: {"MemAvailable": 1 << 20})
    found = ended(new_run(tmp_path / "run"), {"code": -9, "began": 1.0, "ended": clock.now() - 600, "oom_kills": after})
    assert (found.oom_kills, found.memory_available_bytes) == (kills, None), "and the memory of ten minutes later is another one"
    assert diagnose_failure(replace(found, kernel_messages=None), cards_of("failures")).cause == cause


def test_little_memory_right_after_an_end_still_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.supervision.evidence.host_memory", lambda: {"MemAvailable": 1 << 20})
    found = ended(new_run(tmp_path / "run"), {"code": -9, "began": 1.0, "ended": clock.now(), "oom_kills": 3})
    assert diagnose_failure(replace(found, kernel_messages=None), cards_of("failures")).cause == "host_out_of_memory"


def test_of_several_ranks_the_one_that_was_killed_is_looked_for_in_the_kernels_log(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    folder = run.attempt(1)
    folder.mkdir(parents=True)
    for rank, pid in ((0, 100), (1, 4711)):
        write_json(folder / f"rank{rank}.json", {"identity": {"pid": pid}})
    write_json(folder / "launch.json", {"committed_before": 0, "started": clock.now()})
    write_json(folder / "ending.json", {"code": -9, "ended": clock.now()})
    found = collect(Attempt(1, folder, None), run, Ending("killed", -9, facts={"rank": 1, "codes": [-9, -9]}))
    assert diagnose_failure(replace(found, kernel_messages=(KILLED,)), cards_of("failures")).cause == "host_out_of_memory"


def test_the_samples_in_flight_are_those_of_the_rank_that_died(tmp_path: Path) -> None:
    """They were the first rank's, whose rows had nothing to do with it."""
    run, first = new_run(tmp_path / "run"), tmp_path / "memory.rank0"
    folder = run.attempt(1)
    folder.mkdir(parents=True)
    for rank in (0, 1):
        memory = MemoryFile.create(of_rank(first, rank), run.path, 0, 0)
        memory.beat({"attempt": 1, "step": 7, "phase": "step", "samples": [rank], "time": 1.0})
    write_json(folder / "ready.json", {"memory_file": str(first)})
    found = {rank: collect(Attempt(1, folder, None), run, Ending("killed", -11, facts={"rank": rank})) for rank in (0, 1, 2)}
    assert {rank: one.samples for rank, one in found.items()} == {0: (0,), 1: (1,), 2: ()}, "of the third, on another machine, none"
    assert {one.step for one in found.values()} == {7}


def test_an_attempt_whose_end_nobody_saw_lived_to_its_newest_sign(tmp_path: Path) -> None:
    """It was said to have ended when it was found: a night later, or a summer."""
    run = new_run(tmp_path / "run")
    began = clock.now() - 3600
    append_line(run.steps_file, {"step": 1, "attempt": 1, "time": began + 60})
    assert ended(run, None, None).died == began + 60
    assert ended(run, None, None).died == pytest.approx(began, abs=60), "the second has no row: not before it was started"


@pytest.mark.parametrize(
    "line",
    [
        "[W socket.cpp:697] [c10d] The socket has failed to connect to [localhost]:29500 (errno: 97 - Address family not supported).",
        "wandb: Network error (ConnectTimeout), entering retry loop.",
    ],
)
def test_a_run_of_our_own_is_not_steered_by_what_healthy_programs_print(line: str) -> None:
    assert diagnose_failure(replace(failure_report(), ending=Ending("error", 1), lines=(line,)), cards_of("failures")).cause == "unknown"


def test_a_run_of_our_own_is_not_steered_by_a_guess() -> None:
    log = "Tensile could not satisfy the hipblaslt matmul heuristic, kernel solution missing"
    cards = {name: card for name, card in cards_of("failures").items() if name != "topic-blas"}
    assert diagnose(Evidence(tuple(clean_lines(log)), 1), cards).cause == "blas_library_failure"
    assert diagnose_failure(replace(failure_report(), ending=Ending("error", 1), lines=(log,)), cards).cause == "unknown"


def test_a_trainers_own_exit_codes_are_told_apart() -> None:
    ours = [outcome.code for outcome in OUTCOMES.values() if outcome.code not in (None, errors.DONE, errors.INTERRUPTED)]
    others = [errors.DONE, errors.BLOCKED, errors.USAGE, errors.GAVE_UP, errors.OUR_BUG, errors.INTERRUPTED, errors.AGAIN]
    assert len(ours) == 10 and len({*ours, *others}) == len(ours) + len(others)
    assert all(code < 126 for code in ours if code), "above are a shell's own words"
    assert all(kind_by_code(exit_code(kind)) == kind for kind, outcome in OUTCOMES.items() if outcome.code is not None)
    assert set(OUTCOMES) | {"killed", "error"} == set(get_args(EndingKind)), "those two have a number in their words"


@pytest.mark.parametrize(("code", "kind"), [(64, "nonfinite"), (66, "disk_full"), (69, "damaged"), (71, "device_gone"), (72, "peer_lost")])
def test_exit_codes_of_older_run_folders_mean_what_they_meant(code: int, kind: str) -> None:
    assert kind_by_code(code) == kind


def test_a_disk_that_fills_up_does_not_hide_how_an_attempt_ended(small_disk: Path) -> None:
    attempt = small_disk / "001"
    attempt.mkdir()
    shim.reserve(attempt)
    filler = fill(small_disk)
    shim.write_ending(attempt, {"code": 66, "began": 1.0, "ended": 2.0})
    assert read_json(attempt / "ending.json") == {"code": 66, "began": 1.0, "ended": 2.0}
    filler.unlink()
    other = small_disk / "002"
    other.mkdir()
    shim.reserve(other)
    shim.write_ending(other, {"code": 0})
    assert [file.name for file in other.iterdir()] == ["ending.json"], "nothing is left where there was room"


def test_a_full_disk_costs_a_supervisor_its_standby_alone(small_disk: Path) -> None:
    """What it would note waits in memory, in its order, and nothing that it watches is left to itself."""
    said: list[str] = []
    run = BufferedRunFolder(new_run(small_disk / "run").path, said.append)
    commit(run, attempt=1)
    run.event("first")
    filler = fill(small_disk)
    standby = Standby(run, "imports", always=True)
    standby.consider(relaunch(run))
    assert not standby.waits()
    for number in range(100):  # more than the page that the file has
        run.event("second", number=number)
    assert len(said) == 1 and f"the disk of {run.path} is full" in said[0]
    assert [event["number"] for event in run.events() if event["event"] == "second"] == [*range(100)], "those that wait are read, too"
    filler.unlink()
    run.event("third")
    assert "has room again" in said[1]
    on_disk = [event["event"] for event in RunFolder(run.path).events() if not event["event"].startswith("journals_")]
    assert on_disk == ["first", *["second"] * 100, "third"]
