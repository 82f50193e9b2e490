"""`python scripts/test_times.py [FILE ...] [--tests] [--heavy]`: where the processor's time of a test run went, by file or by test.

With --heavy the names of tests that took long are written to tests/support/heavy.txt, which `make test` leaves out: but for the cheapest of
a file, so that each file has one that runs.
FILE is what `make test` leaves in build/test-times.jsonl: a line for each test, with seconds on the clock and of the processor.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

SHOWN = 40
HEAVY_S = 4.0  # seconds of processor
HEAVY = Path(__file__).parent.parent / "tests" / "support" / "heavy.txt"


def write_heavy(seconds: dict[str, float]) -> None:
    """Write the list, the most expensive first. A test that was not run, as it is left out, keeps its place behind them."""
    known = HEAVY.read_text(encoding="utf-8").splitlines() if HEAVY.is_file() else []
    heavy = sorted((test for test, took in seconds.items() if took >= HEAVY_S), key=lambda test: -seconds[test])
    cheapest = {test.partition("::")[0]: test for test in heavy}
    names = [test for test in heavy if test != cheapest[test.partition("::")[0]]]
    HEAVY.write_text("".join(f"{name}\n" for name in [*names, *(test for test in known if test not in seconds)]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[Path("build/test-times.jsonl")], metavar="FILE")
    parser.add_argument("--tests", action="store_true", help="by test, not by file")
    parser.add_argument("--all", action="store_true", help=f"all of them, not the first {SHOWN}")
    parser.add_argument(
        "--heavy", action="store_true", help=f"write tests/support/heavy.txt: those that took {HEAVY_S:g} s of processor or more"
    )
    arguments = parser.parse_args()
    rows = [json.loads(line) for file in arguments.files for line in file.read_text(encoding="utf-8").splitlines()]
    if arguments.heavy:
        write_heavy({row["test"]: row["cpu"] for row in rows})
        return
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        name = row["test"] if arguments.tests else row["test"].partition("::")[0]
        sums[name] = [have + more for have, more in zip(sums[name], (row["cpu"], row["seconds"], 1), strict=True)]
    total = [sum(column) for column in zip(*sums.values(), strict=True)] or [0, 0, 0]
    print(f"{'processor s':>11} {'clock s':>8} {'tests':>6}")
    entries = sorted(sums.items(), key=lambda entry: -entry[1][0])
    for name, (cpu, clock, count) in [("all", total), *(entries if arguments.all else entries[:SHOWN])]:
        print(f"{cpu:11.1f} {clock:8.1f} {count:6.0f}  {name}")


if __name__ == "__main__":
    main()
