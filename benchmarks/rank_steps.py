"""What a step takes on 1 rank and on 2, a thread each, on the same work: seconds, CPU seconds, bytes on the wire.

    python benchmarks/engine/make_models.py /tmp/12m --size 12m
    unshare --net python benchmarks/rank_steps.py --model /tmp/12m --rows ROWS.jsonl [--adapter lora|full] [--rounds 3] [--steps 40]

The runs take turns, so that other work on the machine meets all of them. Of each: medians over its steps after the first ten, and the
median of those over the rounds. `own`: until the slowest rank had its gradients (rank_seconds); `rest`: telling each other, adding, the
update, the snapshot. CPU seconds are those of the trainers' threads, from the tenth step to the last that is seen, by the kernel's count.
In a network of its own (unshare --net) the bytes that go over the loopback device meanwhile are the ranks' alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

CONTENDERS: dict[str, dict[str, Any]] = {
    "1 rank": {"ranks": 1},
    "1 rank, 8 shards": {"ranks": 1, "reduction_parts": 8},
    "2 ranks, shards: off": {"ranks": 2, "reduction_parts": "off"},
    "2 ranks, 8 shards": {"ranks": 2, "reduction_parts": 8},
}
WARM = 10  # steps that are not counted
COLUMNS = ("s a step", "own s", "rest s", "rest", "CPU s a step", "KB a step", "load")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--adapter", choices=("lora", "full"), default="lora")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False, stderr=subprocess.DEVNULL)  # of a network that was just made
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.rounds):
        for name, about in CONTENDERS.items():
            with tempfile.TemporaryDirectory() as folder:
                seen[name].append(measured(arguments, about, Path(folder)))
            print(name, {key: round(value, 4) for key, value in seen[name][-1].items()}, file=sys.stderr, flush=True)
    print("| contender | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|")
    for name, rounds in seen.items():
        step, own, cpu, wire, load = (statistics.median(one[key] for one in rounds) for key in ("step", "own", "cpu", "wire", "load"))
        cells = (
            f"{step:.3f}",
            f"{own:.3f}",
            f"{step - own:.3f}",
            f"{1 - own / step:.0%}",
            f"{cpu:.3f}",
            f"{wire / 1e3:,.0f}",
            f"{load:.0f}",
        )
        print(f"| {name} | " + " | ".join(cells) + " |")


def measured(arguments: argparse.Namespace, about: dict[str, Any], folder: Path) -> dict[str, float]:
    """One run: medians of its steps."""
    train = {"steps": arguments.steps, "effective_batch": arguments.batch, "max_tokens": 256, "threads": 1} | about
    config = {
        "model": arguments.model,
        "data": {"files": str(arguments.rows.resolve()), "held_out": 0.0},
        "adapter": {"type": "full"} if arguments.adapter == "full" else {"r": 16},
        "train": train,
        "evaluate": {"generate": 0},
        "run": {"standby": False},
    }
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    run = folder / "run"
    command = [sys.executable, "-m", "holdfast", "train", str(folder / "c.yaml"), "--run", str(run), "--quiet"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    used: list[tuple[int, float, int]] = []  # step, CPU seconds, bytes
    while child.poll() is None:
        rows = rows_of(run)
        if rows and arguments.steps > rows[-1]["step"] >= WARM and (spent := cpu_seconds(run, about["ranks"])) is not None:
            used.append((rows[-1]["step"], spent, wire_bytes()))
        time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"the run ended with {child.returncode}")
    rows = rows_of(run)[WARM:]
    (first, cpu, sent), (last, more, all_sent) = used[0], used[-1]
    own = [max(row["rank_seconds"]) if "rank_seconds" in row else row["seconds"] for row in rows]
    return {
        "step": statistics.median(row["seconds"] for row in rows),
        "own": statistics.median(own),
        "cpu": (more - cpu) / (last - first),
        "wire": (all_sent - sent) / (last - first),
        "load": os.getloadavg()[0],
    }


def rows_of(run: Path) -> list[dict[str, Any]]:
    file = run / "steps.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cpu_seconds(run: Path, ranks: int) -> float | None:
    """Of all trainers together; None where one has ended."""
    total = 0
    for rank in range(ranks):
        pid = json.loads((run / f"attempts/001/rank{rank}.json").read_text())["identity"]["pid"]
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def wire_bytes() -> int:
    """What the loopback device has sent."""
    line = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.partition(":")[2].split()[8])


if __name__ == "__main__":
    main()
