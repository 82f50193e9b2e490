"""`python scripts/second_look.py`: run the failed tests of processes again, each by itself, three times; what CI does after a failure.

A test that kills, stops and restarts processes may fail because a machine was busy. Exit code 0 needs at most three failures, in the
folders below only, and each test passed all three times. It is named then, and its cause is to be mended. All other failures are final.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
FAILED = ROOT / "build" / "test-failures.json"  # what `make test` leaves: its exit code and the names of the tests that failed
FOLDERS = ("acceptance", "callback", "processes", "simulated", "supervision", "watch")
MOST, TIMES = 3, 3


def final_failures(failed: Iterable[str]) -> list[str]:
    """Return the failures that no second look can take back."""
    failed = list(failed)
    own = [test for test in failed if "::" not in test or not test.startswith(tuple(f"tests/{folder}/" for folder in FOLDERS))]
    return own or (failed if len(failed) > MOST else [])


def passes(test: str) -> bool:
    """Return whether it passes by itself."""
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", test], cwd=ROOT, check=False).returncode == 0


def look_again(failed: Iterable[str], passes: Callable[[str], bool] = passes) -> int:
    """Return the exit code: 0 where each of the tests passes each time, 1 where one does not, where they are too many or there are none."""
    failed = list(failed)
    if not failed:
        print("no failed test is on record", file=sys.stderr)
        return 1
    if final := final_failures(failed):
        print("failed, and not looked at again:", *final, sep="\n  ", file=sys.stderr)
        return 1
    red = [test for test in failed if not all(passes(test) for _ in range(TIMES))]
    for test in failed:
        told = (
            "failed again by itself"
            if test in red
            else f"UNSTEADY: failed beside others, passed {TIMES} of {TIMES} times by itself; mend its cause"
        )
        print(f"{told}: {test}", file=sys.stderr)
    return 1 if red else 0


def failures() -> list[str]:
    """Return the names of the tests that failed; none where the run did not come to its end."""
    found = json.loads(FAILED.read_text(encoding="utf-8")) if FAILED.is_file() else {}
    return found["failed"] if found.get("exit") == 1 else []


if __name__ == "__main__":
    sys.exit(look_again(failures()))
