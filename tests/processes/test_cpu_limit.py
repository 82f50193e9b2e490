"""A process that its limits ended, of CPU time or address space, is told from one that somebody killed, and the way out is named."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.files import write_json
from holdfast.book import cards_of
from holdfast.diagnosis.diagnose import diagnose_failure
from holdfast.diagnosis.explain import answer
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import _ending, plain_ending
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import DISK_TAKES_NOTHING
from holdfast.run.types import Ending, FailureReport
from holdfast.supervision.policy.next_move import wants_experiments

_SHIM = """
import resource, sys, time
from holdfast.processes.trainers import Trainers
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[2])))
trainers = Trainers([sys.executable, "-c", sys.argv[3]], [0], {}, ())
while trainers.poll() is None:
    time.sleep(0.02)
print([trainers.codes[0], trainers.limits[0]])
"""
_WORK, _KILLED = "while True: pass", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("soft", "hard", "code", "told"),
    [
        (1, 1, _WORK, [-signal.SIGKILL, {"cpu_limit_s": 1}]),
        (1, 60, _WORK, [-signal.SIGXCPU, {"cpu_limit_s": 1}]),
        (60, 60, _KILLED, [-signal.SIGKILL, {}]),
        (60, 60, "raise SystemExit(3)", [3, {}]),
    ],
)
def test_an_end_at_the_limit_is_told_from_a_kill(soft: int, hard: int, code: str, told: list[object]) -> None:
    done = subprocess.run([sys.executable, "-c", _SHIM, str(soft), str(hard), code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([int(told[0]), told[1]])  # type: ignore[call-overload]


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGXCPU, 128 + signal.SIGKILL])
def test_it_is_named_with_its_way_out_and_no_trial_meets_it_again(code: int) -> None:
    ending = plain_ending({"code": code, "began": 1.0, "ended": 3.0, "cpu_limit_s": 3600}, {})
    assert ending.words().endswith("at the limit of 3,600 s of CPU time for each process (ulimit -t)") and not ending.from_outside
    report = FailureReport(1, ending, 5, "step", (1,), (), 4, 4, 0.0, None, None)
    told = answer(diagnose_failure(report, cards_of("failures")), cards_of("failures"))
    assert told["cause"] == "launch_misconfigured" and "ulimit" in told["remedies"][0]["command"]
    assert not wants_experiments(report, [])


@pytest.mark.parametrize(
    ("code", "told"), [("bytearray(8 << 30)", [1, {"address_space_bytes": 4 << 30}]), ("import os; os._exit(0)", [0, {}])]
)
def test_a_limit_on_addresses_is_seen_where_a_process_fails_under_it(code: str, told: list[object]) -> None:
    limited = _SHIM.replace("RLIMIT_CPU", "RLIMIT_AS")
    done = subprocess.run([sys.executable, "-c", limited, *[str(4 << 30)] * 2, code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(told)


def test_memory_refused_by_a_limit_on_addresses_asks_for_no_swap(tmp_path: Path) -> None:
    """A run under `ulimit -v` was told that the host was out of memory, and to add swap."""
    seen = {"code": 67, "began": 1.0, "ended": 3.0, "address_space_bytes": 8 << 30}
    run = RunFolder(tmp_path)
    attempt = Attempt(1, run.made(run.attempt(1)), None)
    write_json(attempt.folder / "ending.json", seen)
    write_json(attempt.folder / "result.json", {"kind": "out_of_memory", "reason": "one sample does not fit into memory", "device": "cpu"})
    own = _ending(attempt, run)
    assert own and own.kind == "out_of_memory"
    for ending in (own, plain_ending(seen | {"code": 1}, {}), plain_ending(seen | {"code": -signal.SIGABRT}, {})):
        report = FailureReport(1, ending, 5, "step", (1,), ("std::bad_alloc", "MemoryError"), 4, 4, 0.0, None, None)
        told = answer(diagnose_failure(report, cards_of("failures")), cards_of("failures"))
        assert told["cause"] == "launch_misconfigured" and "each one may have 8.00 GiB (ulimit -v)" in told["explanation"]
        assert ["ulimit -Sv" in one["command"] for one in told["remedies"]] == [True]


def test_what_the_kernel_ended_for_memory_is_no_matter_of_a_limit() -> None:
    ending = plain_ending({"code": -signal.SIGKILL, "began": 1.0, "ended": 3.0, "address_space_bytes": 8 << 30}, {})
    report = FailureReport(1, ending, 5, "step", (1,), (), 4, 4, 0.0, None, None, oom_kills=1)
    assert diagnose_failure(report, cards_of("failures")).cause == "host_out_of_memory"


def test_a_limit_on_the_size_of_a_file_is_no_full_disk() -> None:
    """A run under `ulimit -f` was told to keep fewer checkpoints."""
    said = f"holdfast: {DISK_TAKES_NOTHING}: '/runs/a/x' may not become as large as it has to be (File too large): raise the limit"
    report = FailureReport(1, Ending("disk_full", 1, 2.0), 5, "step", (1,), (said,), 4, 4, 0.0, None, None)
    told = answer(diagnose_failure(report, cards_of("failures")), cards_of("failures"))
    assert told["cause"] == "launch_misconfigured" and "ulimit -Sf" in told["remedies"][0]["command"]


def test_one_that_was_killed_is_as_before() -> None:
    ending = plain_ending({"code": -9, "began": 1.0, "ended": 3.0}, {})
    assert ending == Ending("killed", -9, 2.0) and ending.words() == "killed by SIGKILL" and ending.from_outside
