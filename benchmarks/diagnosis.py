"""How often `holdfast diagnose` is right, per cause; what its confidence is worth; what it says of healthy logs.

    python benchmarks/diagnosis.py FAILURES.jsonl [--curves DIR] [--held-out IDS.json | --training IDS.json] [--wrong]

FAILURES.jsonl: one object a line with `log`, `cause`, `source` (an address with owner/repository), `exit` (or null), `facts`.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from holdfast.book import cards_of
from holdfast.cli.commands.diagnose import exit_code
from holdfast.diagnosis.diagnose import diagnose
from holdfast.diagnosis.logs.text import Evidence, clean_lines
from holdfast.run.types import Diagnosis

BINS = (0.0, 0.3, 0.5, 0.7, 0.85, 1.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("failures", type=Path)
    parser.add_argument("--curves", type=Path, help="folder with healthy/ and spike_recovered/ loss curves")
    parser.add_argument("--held-out", type=Path, help="only the records of these ids")
    parser.add_argument("--training", type=Path, help="only the records that are not of these ids")
    parser.add_argument("--wrong", action="store_true", help="show the wrong answers")
    arguments = parser.parse_args()
    records = [json.loads(line) for line in arguments.failures.read_text().splitlines()]
    for file, keep in ((arguments.held_out, True), (arguments.training, False)):
        if file:
            ids = set(json.loads(file.read_text()))
            records = [record for record in records if (record["id"] in ids) is keep]
    answers = [(record, judge(record)) for record in records]
    report(answers)
    if arguments.wrong:
        show_wrong(answers)
    if arguments.curves:
        healthy(arguments.curves)


def judge(record: dict[str, Any]) -> Diagnosis:
    code = exit_code(str(record["exit"])) if record["exit"] is not None else None
    return diagnose(Evidence(tuple(clean_lines(record["log"])), code, machine_of(record["facts"])), BOOK)


def machine_of(facts: dict[str, str]) -> dict[str, Any]:
    """The facts of a record as a machine file has them; only what needs no interpretation."""
    machine: dict[str, Any] = {}
    if found := re.match(r"gfx\w+", facts.get("arch", "")):
        machine["gpus"] = [{"vendor": "amd", "arch": found[0]}]
    if "torch" in facts:
        machine["torch"] = {"version": facts["torch"]}
    return machine


def report(answers: list[tuple[dict[str, Any], Diagnosis]]) -> None:
    first, three = Counter[str](), Counter[str]()
    total = Counter(record["cause"] for record, _ in answers)
    bins: dict[int, list[tuple[float, bool]]] = defaultdict(list)
    for record, found in answers:
        right = found.cause == record["cause"]
        first[record["cause"]] += right
        three[record["cause"]] += record["cause"] in (found.cause, *(cause for cause, _ in found.also[:2]))
        at = next(number for number, edge in enumerate(BINS[1:]) if found.confidence < edge)
        bins[at].append((found.confidence, right))
    count, unknown = len(answers), sum(found.cause == "unknown" for _, found in answers)
    shares = [f"{sum(right.values()) / count:.1%}" for right in (first, three)]
    print(f"{count} records: first answer {shares[0]}, first three {shares[1]}, unknown {unknown}\n")
    print("| cause | records | first answer | first three |\n|---|---|---|---|")
    for cause in sorted(total):
        print(f"| {cause} | {total[cause]} | {first[cause]} | {three[cause]} |")
    print("\n| confidence | answers | mean confidence | right |\n|---|---|---|---|")
    for at, found_in in sorted(bins.items()):
        mean, right = (sum(pair[number] for pair in found_in) / len(found_in) for number in (0, 1))
        print(f"| {BINS[at]:.2f} to {min(1, BINS[at + 1]):.2f} | {len(found_in)} | {mean:.2f} | {right:.2f} |")


def show_wrong(answers: list[tuple[dict[str, Any], Diagnosis]]) -> None:
    for record, found in answers:
        if found.cause != record["cause"]:
            print(f"\n=== {record['id']} is {record['cause']}, exit {record['exit']}, {record['facts']}")
            print(record["log"])
            print(f"--- {found.cause} {found.confidence} {found.also} {found.cards}")


def healthy(curves: Path) -> None:
    """What logs without failure are said to be: those that were healthy all along, and those that recovered."""
    for kind in ("healthy", "spike_recovered", "hard_negative", "unhealthy"):
        found = [diagnose(Evidence(tuple(clean_lines(file.read_text()))), BOOK) for file in sorted((curves / kind).glob("*.jsonl"))]
        print(f"\n{kind}: {len(found)} logs: {dict(Counter(one.cause for one in found))}")


BOOK = cards_of("failures")
if __name__ == "__main__":
    main()
