"""What glibc's allocator costs a step when big freed blocks go back to the system, and what holdfast's setting saves.

    python benchmarks/allocator.py --model FOLDER --rows rows.jsonl [--steps 12] [--rounds 2] [--threads 1]

The same run in turn with glibc as it is and with what `supervisor/launch.py` sets; the median step of each, without the first three.
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

AS_IT_IS = {"MALLOC_PERTURB_": "0"}  # any MALLOC_ setting of the user's keeps holdfast from making its own; this one does nothing


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the allocator setting.")
    parser.add_argument("--model", required=True, help="a folder in Hugging Face layout")
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    found: dict[str, list[float]] = {"glibc as it is": [], "holdfast's setting": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            order = list(found) if number % 2 == 0 else list(reversed(found))
            for name in order:
                changes = AS_IT_IS if name == "glibc as it is" else {}
                found[name] += tokens_per_second(options, Path(folder) / f"{number}-{len(found[name])}-{name[:5]}", changes)
    print("| allocator | tokens/s in steps, median | ratio |\n|---|---|---|")
    base = statistics.median(found["glibc as it is"])
    for name, values in found.items():
        print(f"| {name} | {statistics.median(values):,.0f} | {statistics.median(values) / base:.2f} |")


def tokens_per_second(options: argparse.Namespace, run: Path, changes: dict[str, str]) -> list[float]:
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
    rows = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()][3:]
    return [row["tokens"] / row["seconds"] for row in rows]


if __name__ == "__main__":
    main()
