"""What each test took: seconds on the clock, and seconds of processor of the test and of the processes it waited for.

Hooks that `conftest.py` takes over. With HOLDFAST_TEST_TIMES naming a file, each test becomes a line of it when it ends:
{"test": "tests/test_x.py::test_y", "seconds": 1.2, "cpu": 0.9}, fixtures that ran for it included; `scripts/test_times.py` reads it.
Beside it, test-failures.json names the tests that failed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from support import selection

FILE = "HOLDFAST_TEST_TIMES"
SLOWEST = 10
_spent: dict[str, list[float]] = {}
_seen = 0.0
ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")
_group: Path | None = None


def processor_s() -> float:
    """Seconds of processor of this process and of all that come from it; without a group, of those that were waited for."""
    if _group is not None:
        return int((_group / "cpuacct.usage").read_text()) / 1e9
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _own_group() -> Path | None:
    """A control group that counts for this process and what it starts, however that is detached; none where that is not allowed."""
    group = ACCOUNTS / f"holdfast-tests-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None

    def leave() -> None:
        with contextlib.suppress(OSError):  # one of its processes lives on
            (ACCOUNTS / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()

    atexit.register(leave)
    return group


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Give each report the seconds of processor since the report before it."""
    global _seen
    report = yield
    now = processor_s()
    report.cpu, _seen = now - _seen, now
    return report


def pytest_collection_finish() -> None:
    global _seen
    _seen = processor_s()


def pytest_sessionstart() -> None:
    global _group
    _group = _own_group()
    if FILE in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        file = Path(os.environ[FILE])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")


def pytest_runtest_logreport(report: Any) -> None:
    """Sum setup, call and teardown up; where the whole run is, the last of them writes the line."""
    spent = _spent.setdefault(report.nodeid, [0.0, 0.0])
    spent[0] += report.duration
    spent[1] += getattr(report, "cpu", 0.0)
    if report.when == "teardown" and FILE in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[FILE], "a", encoding="utf-8") as out:
            out.write(json.dumps({"test": report.nodeid, "seconds": round(spent[0], 3), "cpu": round(spent[1], 3)}) + "\n")


def _machine() -> str:
    """Return what results may depend on: processor, torch's code for it, threads, processes at once, the hash seed."""
    cpu = next((line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?")
    command = [sys.executable, "-c", "import torch; print(torch.__config__.parallel_info(), torch.backends.cpu.get_cpu_capability())"]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    threads, capability = re.search(r"get_num_threads\(\) : (\d+)", told), (told.split() or ["?"])[-1]
    hashes = os.environ.get("PYTHONHASHSEED", "random")
    return f"{cpu}, {os.cpu_count()} cores, torch for {capability} with {threads[1] if threads else '?'} threads, hash seed {hashes}"


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Print what this run takes, the files that took most of the processor, and the sum of all; write what failed beside the times."""
    if where := os.environ.get(FILE):
        failed = {report.nodeid for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())}
        told = json.dumps({"exit": int(exitstatus), "failed": sorted(failed)})
        Path(where).with_name("test-failures.json").write_text(told, encoding="utf-8")
    seconds: Counter[str] = Counter()
    for test, (_, cpu) in _spent.items():
        seconds[test.partition("::")[0]] += cpu
    if len(seconds) > 1:
        terminalreporter.write_line(f"{_machine()}; {selection.describe()}")
        if terminalreporter.stats.get("failed"):
            terminalreporter.write_line("a failure alone: .venv/bin/python -m pytest 'TEST' (its whole name, as below)")
        terminalreporter.section(f"{sum(seconds.values()):.0f} s of processor; most of {len(seconds)} files")
        for file, took in seconds.most_common(SLOWEST):
            terminalreporter.write_line(f"{took:7.1f} s  {file}")
