"""Who resumes: docs/reference/who-resumes.md, made of the recorded cases of matrix.py.

python benchmarks/foreign/matrix.py FOLDER --peers PEERS --faults kill term tear-weights disk     # measure
python benchmarks/foreign/scoreboard.py --record FOLDER --peers PEERS                             # record, and write the page
python benchmarks/foreign/scoreboard.py                                                           # the page alone
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matrix import FAULTS as FAULTS_AT
from matrix import PEERS, VENV, WAYS

ROOT = Path(__file__).parents[2]
RECORD, PAGE = ROOT / "benchmarks/results/foreign-cases.json", ROOT / "docs/reference/who-resumes.md"
FAULTS = {"kill": "SIGKILL", "term": "SIGTERM", "tear-weights": "torn newest, SIGKILL", "disk": "full disk in a save"}
NAMES = ("torch", "transformers", "trl", "peft", "accelerate", "llamafactory", "axolotl", "lightning", "litgpt", "torchtune")
INTRODUCTION = """\
Commands of other trainers, unchanged, and what became of each after one fault: alone, under torchrun (`--max-restarts 3`), under
`holdfast run`, and with its callback. {date}, CPUs, each case once. A model of 0.1M parameters, LoRA with dropout, 16 steps, a checkpoint
every 5; SIGKILL, SIGTERM and the full disk come before step 9, the torn checkpoint before step 13.

Each cell: whether it ended by itself, how many steps were computed twice, and whether every step was that of the undisturbed command
(exact: rows, learning rate, random states, weights and moments of each step, and the weights at the end, bit for bit; same weights: those
at the end alone; else the first step that departs, and in what; what differs before the fault differs without one, too). Empty: not run."""
SECONDS = """\
* **Seconds**: the median case that ended after a kill, SIGTERM or torn checkpoint took: {times}. A death costs a second start of Python,
  torch and the model, whoever starts it, and a run of 16 steps is hardly longer than that. What is saved is steps, and a step was a second
  here. The machine was shared (load 4 to 20): these seconds compare no tools."""
FULL = """\
* **A full disk**: {alone} of {all} ended by themselves; nobody makes room. {most} steps at most were computed twice
  once there was room."""
OWN = "* **Without the callback** `run` goes on from the command's own checkpoint: {least} to {most} steps were computed twice."
LIGHTNING = """\
* **Lightning** goes on from its own checkpoint with the weights, the moments and the learning rate it saved, but begins the rows of that
  epoch again (its step 6, the first behind the checkpoint of step 5, sees those of step 1) and with other random states: neither is in its
  checkpoint unless the loader keeps its own place. That is so alone and under `run`. It takes SIGTERM for an end, with exit code 0,
  and `run` says how many steps are missing."""
OTHERS = "Other faults (NaN, hangs, memory, a worker), and what they cost: [commands under faults](../../benchmarks/results/foreign.md)."
KEPT = ("peer", "fault", "way", "ended", "seconds", "starts", "twice", "weights", "finite", "departs", "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="take over its cases.jsonl")
    parser.add_argument("--peers", type=Path, help="the environments: their versions are recorded")
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.record, arguments.peers)
    PAGE.write_text(page(json.loads(RECORD.read_text())))


def record(folder: Path, peers: Path) -> None:
    rows = {(row["peer"], row["fault"], row["way"]): row for row in map(json.loads, (folder / "cases.jsonl").read_text().splitlines())}
    chosen = [row for row in rows.values() if row["fault"] in ("none", *FAULTS)]
    cases = [{name: row.get(name) for name in KEPT} | {"looked": _looked(folder, row)} for row in chosen]
    before = json.loads(RECORD.read_text())  # what was not measured again stays
    again = {(row["peer"], row["fault"], row["way"]) for row in cases}
    cases += [row for row in before["cases"] if (row["peer"], row["fault"], row["way"]) not in again]
    cases.sort(key=lambda row: (PEERS.index(row["peer"]), ["none", *FAULTS].index(row["fault"]), WAYS.index(row["way"])))
    used = {VENV[row["peer"]] for row in cases}
    versions = {name: dict(_versions(peers / f"{name}.versions")) for name in sorted(used)}
    first, today = before["date"][:10], time.strftime("%F")
    date = today if first == today else f"{first} to {today}"
    lines = ",\n".join(json.dumps(case) for case in cases)
    RECORD.write_text(f'{{"date": "{date}", "versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n')


def _looked(folder: Path, row: dict[str, Any]) -> int:
    """Rows of fingerprints that were held against those of the undisturbed command; 0 where nobody looked at its steps."""
    places = [folder / "cases" / "-".join((row["peer"], *one)) for one in ((row["fault"], row["way"]), ("none", "alone"))]
    return min(len(file.read_text().splitlines()) if (file := place / "fingerprints.jsonl").exists() else 0 for place in places)


def _versions(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text().splitlines():
        name, _, version = line.partition("==")
        if name in NAMES:
            yield name, version


def page(found: dict[str, Any]) -> str:
    """The page of what was recorded."""
    cases = {(row["peer"], row["fault"], row["way"]): row for row in found["cases"]}
    peers = [peer for peer in PEERS if any(key[0] == peer for key in cases)]
    lines = [
        "# Who resumes",
        "",
        f"<!-- made by benchmarks/foreign/scoreboard.py of benchmarks/results/{RECORD.name} -->",
        "",
        *INTRODUCTION.format(date=found["date"]).splitlines(),
        "",
        "| trainer | fault | " + " | ".join(WAYS) + " |",
        "|---" * (2 + len(WAYS)) + "|",
    ]
    for peer in peers:
        for fault, words in FAULTS.items():
            cells = [cell(cases.get((peer, fault, way)), cases.get((peer, "none", "alone"))) for way in WAYS]
            if any(cells):
                lines.append(f"| {peer} | {words} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *_ours(found["cases"]), "", *_how(found["versions"])]) + "\n"


def cell(row: dict[str, Any] | None, whole: dict[str, Any] | None) -> str:
    """One case in words; whole: the undisturbed command."""
    if row is None:
        return ""
    ended = row["ended"]
    if ended == "never":
        return "**never ends**"
    if ended.startswith("no:") and not ended.endswith(": yes"):
        return f"no (exit code {ended.removeprefix('no: ').split(';')[0]})"
    says = "yes" if ended == "yes" else "no; typed again, with room: yes"
    lost = f", {row['twice']} twice" if row["starts"] and row["starts"] > 1 else ""
    if row["finite"] is False:
        return f"{says}{lost}, **NaN in the weights**"
    if row["departs"] and row["departs"]["step"] < FAULTS_AT[row["fault"]] - row["twice"]:  # the steps computed again come after it
        return f"{says}{lost}; differs from step {row['departs']['step']} on, before the fault ({row['departs']['what']})"
    if row["departs"]:
        return f"{says}{lost}, **departs at step {row['departs']['step']}** ({row['departs']['what']})"
    if row["weights"] is None:
        return f"{says}{lost}, **no weights**"
    same = whole is not None and row["weights"] == whole["weights"]
    return f"{says}{lost}, " + (("exact" if row["looked"] else "same weights") if same else "**other weights**")


def _ours(cases: list[dict[str, Any]]) -> list[str]:
    """What speaks against `run` and the callback in these numbers."""
    lines = ["## What is no better with holdfast", ""]
    told = {way: [row for row in cases if row["way"] == way and row["fault"] in ("kill", "term", "tear-weights")] for way in WAYS}
    halves = {way: [row["seconds"] for row in rows if row["ended"] == "yes"] for way, rows in told.items()}
    both = [way for way in WAYS if halves[way]]
    times = ", ".join(f"{way} {statistics.median(halves[way]):.0f} s ({len(halves[way])} cases)" for way in both)
    lines += SECONDS.format(times=times).splitlines()
    full = [row for row in cases if row["fault"] == "disk" and row["way"] in ("run", "callback")]
    if full:
        alone = sum(row["ended"] == "yes" for row in full)
        lines += FULL.format(alone=alone, all=len(full), most=max(row["twice"] for row in full)).splitlines()
    again = [row["twice"] for row in told["run"] if row["ended"] == "yes"]
    lines += [OWN.format(least=min(again), most=max(again))] if again else []
    departs = any(row["departs"] and row["departs"]["what"] == "rows" for row in cases if row["peer"] == "lightning")
    return [*lines, *(LIGHTNING.splitlines() if departs else ())]


def _how(versions: dict[str, dict[str, str]]) -> list[str]:
    lines = ["## Versions, and how to do it again", ""]
    lines += [f"* {name}: " + ", ".join(f"{one} {version}" for one, version in sorted(known.items())) for name, known in versions.items()]
    return [
        *lines, "", "```console",
        f"$ benchmarks/engine/setup_peers.sh PEERS {' '.join(versions)}",
        f"$ python benchmarks/foreign/matrix.py FOLDER --peers PEERS --faults {' '.join(FAULTS)}",
        "$ python benchmarks/foreign/scoreboard.py --record FOLDER --peers PEERS", "```", "",
        OTHERS,
    ]  # fmt: skip


if __name__ == "__main__":
    main()
