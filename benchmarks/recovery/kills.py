"""What a kill costs: real SIGKILLs of the trainer at random moments, from the kill to the next committed step, in parts.

    python benchmarks/recovery/kills.py --model tiny --rows ROWS.jsonl [--kills 20] [--batch 8] [--threads 1] [--no-standby] [--seed 1]

Prints two rows of a Markdown table: medians and worst of all kills. A kill comes when a standby is ready and at least three steps were
committed since the last one. `committed steps lost` counts rows of steps.jsonl that were gone afterwards, `computed twice` the
committed steps that had to be computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

COLUMNS = (
    "model",
    "standby",
    "kills",
    "",
    "detection",
    "start",
    "load",
    "step",
    "total s",
    "step s",
    "in steps",
    "lost",
    "computed twice",
    "standby MB",
)
STEPS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-standby", dest="standby", action="store_false")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        costs, steps = killed_run(arguments, Path(folder))
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, pick in (("median", statistics.median), ("worst", max)):
        parts = [f"{pick([cost[part] for cost in costs]):.2f}" for part in ("detection", "start", "load", "step", "total")]
        step = statistics.median(steps)
        again = sum(cost["again"] for cost in costs)
        cells = (Path(arguments.model).name, "yes" if arguments.standby else "no", len(costs), name, *parts, f"{step:.2f}")
        total = pick([cost["total"] for cost in costs])
        memory = pick([cost["memory"] for cost in costs])
        print(
            "| " + " | ".join(map(str, (*cells, f"{total / step:.1f}", sum(cost["lost"] for cost in costs), again, f"{memory:.0f}"))) + " |"
        )


def killed_run(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict[str, float]], list[float]]:
    """Seconds of each kill by part, and the seconds of every committed step."""
    config = {
        "model": arguments.model,
        "data": {"files": str(arguments.rows.resolve()), "held_out": 0.01},
        "adapter": {"r": 8},
        "train": {"steps": STEPS, "effective_batch": arguments.batch, "max_tokens": 256, "threads": arguments.threads},
        "run": {"standby": arguments.standby},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    run, chance = folder / "run", random.Random(arguments.seed)
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "holdfast", "train", str(folder / "c.yaml"), "--run", str(run)]
        supervisor = subprocess.Popen(command, stdout=log, stderr=log)
        costs = [one_kill(run, chance, arguments.standby, supervisor) for _ in range(arguments.kills)]
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait()
    return costs, [row["seconds"] for row in rows_of(run)]


def one_kill(run: Path, chance: random.Random, standby: bool, supervisor: subprocess.Popen[bytes]) -> dict[str, float]:
    attempts = len(events(run, "attempt_started"))
    wanted = committed(run) + 3
    while committed(run) < wanted or (standby and not standby_is_ready(run)):
        if supervisor.poll() is not None:
            raise SystemExit(f"the run ended by itself: {run}")
        time.sleep(0.05)
    step_s = rows_of(run)[-1]["seconds"]
    time.sleep(chance.random() * 2 * step_s)
    memory = memory_mb(waiting_pid(run)) if standby else 0.0
    trainer = json.loads((sorted(run.glob("attempts/*/rank0.json"))[-1]).read_text())["identity"]["pid"]
    os.kill(trainer, signal.SIGKILL)
    killed, before = time.time(), committed(run)
    while len(events(run, "restored")) <= attempts:
        time.sleep(0.01)
    while committed(run) <= before:
        time.sleep(0.005)
    back = time.time()
    ended, started = events(run, "attempt_ended")[-1]["time"], events(run, "attempt_started")[-1]["time"]
    restored = events(run, "restored")[-1]
    return {
        "detection": ended - killed,
        "start": started - ended,
        "load": restored["time"] - started,
        "step": back - restored["time"],
        "total": back - killed,
        "lost": max(0, before - committed(run)),
        "again": max(0, before - restored["step"]),
        "memory": memory,
    }


def standby_is_ready(run: Path) -> bool:
    """Whether a standby waits for its order: it has used CPU time for its start, and uses no more."""
    pid = waiting_pid(run)
    if pid is None:
        return False
    used = []
    for pause in (0.3, 0.0):
        try:
            used.append(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]))
        except OSError:
            return False
        time.sleep(pause)
    return used[0] == used[1] > 100


def waiting_pid(run: Path) -> int | None:
    """The standby trainer of a run, by its command line; one that has taken an attempt over is none any more."""
    taken = {json.loads(file.read_text())["identity"]["pid"] for file in run.glob("attempts/*/rank0.json")}
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"standby" in command and str(run).encode() in command and int(entry.name) not in taken:
            return int(entry.name)
    return None


def memory_mb(pid: int | None) -> float:
    """Memory a process holds, shared pages counted by share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) / 1024


def rows_of(run: Path) -> list[dict[str, Any]]:
    return read(run / "steps.jsonl")


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read(run / "events.jsonl") if event["event"] == kind]


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def committed(run: Path) -> int:
    rows = rows_of(run)
    return rows[-1]["step"] if rows else 0


if __name__ == "__main__":
    main()
