"""Time from the command to the first committed step of the quick start, and what it is spent on.

    python benchmarks/first_step.py [CONFIG] [--repeats N]

Prints medians over N fresh runs. The phases are read from the run folder's own time stamps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(config: Path, run: Path) -> dict[str, float]:
    """Seconds by phase of one fresh run that ends after its first step."""
    began = time.time()
    command = [sys.executable, "-m", "holdfast", "train", str(config), "train.steps=1", "evaluate.generate=0", "--run", str(run), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ended = time.time()
    events = {event["event"]: event["time"] for event in map(json.loads, (run / "events.jsonl").read_text().splitlines())}
    named = (run / "attempts/001/rank0.json").stat().st_mtime
    ready = (run / "attempts/001/ready.json").stat().st_mtime
    first = json.loads((run / "steps.jsonl").read_text().splitlines()[0])["time"]
    return {
        "check the machine and the data, plan": events["run_created"] - began,
        "start nurse and trainer": named - events["run_created"],
        "import torch, transformers, PEFT; load and wrap the model": ready - named,
        "restore, first step, snapshot, journal": first - ready,
        "command to first committed step": first - began,
        "(after it: evaluation, summary, report)": ended - first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, nargs="?", default=Path("examples/quickstart.yaml"))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [measure(arguments.config, Path(folder) / f"run{n}") for n in range(arguments.repeats)]
    print("| phase | seconds, median of " + str(len(runs)) + " |\n|---|---|")
    for phase in runs[0]:
        print(f"| {phase} | {statistics.median(run[phase] for run in runs):.2f} |")


if __name__ == "__main__":
    main()
