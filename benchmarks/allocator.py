"""What glibc's allocator costs a step when big freed blocks go back to the system or do not join, and what holdfast's settings save.

    python benchmarks/allocator.py --model FOLDER --rows rows.jsonl [--steps 12] [--rounds 2] [--threads 1]

The same run in turn with glibc as it is, with big blocks kept, and with what `supervision/launch.py` sets: that, and no small blocks at
hand. The median step of each, without the first three, and the most memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WAYS = {  # any setting of the user's keeps holdfast from making its own; these do nothing
    "glibc as it is": {"MALLOC_PERTURB_": "0"},
    "big blocks kept": {"GLIBC_TUNABLES": "glibc.malloc.perturb=0"},
    "holdfast's setting": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the allocator setting.")
    parser.add_argument("--model", required=True, help="a folder in Hugging Face layout")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    most: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            order = list(found) if number % 2 == 0 else list(reversed(found))
            for name in order:
                rows = steps(options, Path(folder) / f"{number}-{name[:5]}", WAYS[name])
                found[name] += [row["tokens"] / row["seconds"] for row in rows[3:]]
                most[name].append(max(row["peak_bytes"] for row in rows) / 2**20)
    print("| allocator | tokens/s in steps, median | ratio | most memory, MiB |\n|---|---|---|---|")
    base = statistics.median(found["glibc as it is"])
    for name, values in found.items():
        middle = statistics.median(values)
        print(f"| {name} | {middle:,.0f} | {middle / base:.2f} | {statistics.median(most[name]):,.0f} |")


def steps(options: argparse.Namespace, run: Path, changes: dict[str, str]) -> list[dict[str, Any]]:
    config = {
        "model": options.model,
        "data": {"files": str(options.rows.resolve()), "held_out": 0.0},
        "train": {"steps": options.steps, "effective_batch": 8, "threads": options.threads},
        "evaluate": {"generate": 0},
    }
    file = run.with_suffix(".yaml")
    file.write_text(json.dumps(config))
    command = [sys.executable, "-m", "holdfast", "train", str(file), "--run", str(run), "--quiet"]
    subprocess.run(command, env=os.environ | changes, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
