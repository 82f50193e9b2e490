"""Measure what a rate teaches and what it costs: one run a rate with what `init` chooses otherwise, then `verify`.

    python benchmarks/rates.py MODEL ROWS HELD_OUT WORK [--rates 1e-4 2e-4 ...] [--type lora] [--set KEY=VALUE ...]

One line of a table a run: the loss on held-out rows and on general text, base and tuned. A run that is there is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "rows", "held_out", "work"):
        parser.add_argument(name, type=lambda text: Path(text).absolute())
    parser.add_argument("--rates", nargs="+", default=["1e-4", "2e-4", "4e-4", "1e-3", "2e-3"])
    parser.add_argument("--type", default="lora")
    parser.add_argument("--set", nargs="*", default=[], help="keys of the config for every run")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    config = asked.work / "config.yaml"
    if not config.exists():
        holdfast("init", "--model", asked.model, "--data", asked.rows, "--goal", "rates", "--out", config)
    print("| rate | held-out rows | general text | verdict |\n|---|---|---|---|", flush=True)
    for rate in asked.rates:
        run = asked.work / f"{asked.type}-{rate}"
        answer = run.with_suffix(".json")
        if not answer.exists():
            held_out = f"data.held_out_files={asked.held_out}"
            holdfast(
                "train", config, "--run", run, held_out, f"adapter.type={asked.type}", f"train.lr={rate}", "evaluate.generate=0", *asked.set
            )
            answer.write_text(holdfast("verify", run, "--generate", "0", "--json"))
        found = json.loads(answer.read_text())
        task, general = found["loss"], found["forgotten"]["loss"]
        losses = " | ".join(f"{loss['base']:.3f} -> {loss['tuned']:.3f}" for loss in (task, general))
        print(f"| {rate} | {losses} | {found['verdict']} |", flush=True)


def holdfast(*arguments: object) -> str:
    """Run one command of holdfast and return its output. Raises SystemExit with what it said where it fails."""
    done = subprocess.run([sys.executable, "-m", "holdfast", *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(f"holdfast {arguments[0]}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
