"""`python scripts/test_times.py [FILE] [--tests]`: where the processor's time of a test run went, by file or by test.

FILE is what `make test` leaves in build/test-times.jsonl: a line for each test, with seconds on the clock and of the processor.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

SHOWN = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("build/test-times.jsonl"), metavar="FILE")
    parser.add_argument("--tests", action="store_true", help="by test, not by file")
    parser.add_argument("--all", action="store_true", help=f"all of them, not the first {SHOWN}")
    arguments = parser.parse_args()
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for line in arguments.file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name = row["test"] if arguments.tests else row["test"].partition("::")[0]
        sums[name] = [have + more for have, more in zip(sums[name], (row["cpu"], row["seconds"], 1), strict=True)]
    total = [sum(column) for column in zip(*sums.values(), strict=True)] or [0, 0, 0]
    print(f"{'processor s':>11} {'clock s':>8} {'tests':>6}")
    entries = sorted(sums.items(), key=lambda entry: -entry[1][0])
    for name, (cpu, clock, count) in [("all", total), *(entries if arguments.all else entries[:SHOWN])]:
        print(f"{cpu:11.1f} {clock:8.1f} {count:6.0f}  {name}")


if __name__ == "__main__":
    main()
