"""What the kernel said of a death is in its failure report, and counts: OOM kills, device resets; what cannot be read is unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conftest import fill
from holdfast.base import errors
from holdfast.base.files import read_json
from holdfast.book import cards_of
from holdfast.diagnosis.diagnose import diagnose, diagnose_failure
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from holdfast.machine.kernel_log import kernel_messages, oom_kills, records
from holdfast.machine.place import Place
from holdfast.processes import shim
from holdfast.run.outcomes import EXIT_ELSEWHERE, EXIT_WRONG_RESUME, OUTCOMES
from holdfast.run.types import Ending, FailureReport

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
    told = failure_report(
        1, ending=Ending("error", 1), lines=("E1124 api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 8354) of binary: python",)
    )
    assert diagnose_failure(replace(told, oom_kills=0), cards).cause == "unknown", "by a launcher's word"
    assert diagnose_failure(replace(told, oom_kills=1), cards).cause == "host_out_of_memory"


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
    assert oom_kills(Place(tmp_path)) == 2
    (tmp_path / file).unlink()
    assert oom_kills(Place(tmp_path)) is None


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


def test_unreadable_is_unknown_and_not_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kernel_messages(0.0, tmp_path / "none") is None
    journal = tmp_path / "journalctl"
    journal.write_text("#!/bin/sh\necho 'NVRM: Xid (PCI:0000:3b:00): 79'\necho 'something else'\n")
    journal.chmod(0o755)
    assert kernel_messages(0.0, tmp_path / "none") == ("NVRM: Xid (PCI:0000:3b:00): 79",)


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
    ours += [EXIT_ELSEWHERE, EXIT_WRONG_RESUME]
    others = [errors.DONE, errors.BLOCKED, errors.USAGE, errors.GAVE_UP, errors.OUR_BUG, errors.INTERRUPTED, errors.AGAIN]
    assert len(ours) == 10 and len({*ours, *others}) == len(ours) + len(others)
    assert all(code and code < 128 for code in ours), "above are a shell's words for signals"


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
