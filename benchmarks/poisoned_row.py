"""One poisoned row of a real row file, at a random place: how many trials find it, how long that takes, and whether anything else is lost.

    python benchmarks/poisoned_row.py ROWS.jsonl --model FOLDER [--effects abort nan_loss hang oom] [--seed 1] [--batch 32] [--threads 1]

The row is drawn from all lines of the file, then the order of the rows (train.seed) such that it comes within the first steps. Each effect
meets every micro-batch that has the row. A run whose row was left out from its first step on, and which has the same settings timeline
otherwise (running out of memory leaves smaller micro-batches), has to end with the same weights. Prints a row of a Markdown table for
each effect; exits with 1 where a row was not found, another was, or the weights differ.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from holdfast.config.config import Config
from holdfast.data.token_set.token_set import TokenSet, load_tokens, split, step_table
from holdfast.run.folder import RunFolder

WITHIN, AFTER = 30, 5  # steps: the row comes by then; the run goes on for so many
COLUMNS = ("effect", "line", "step", "attempts", "trials", "s until found", "s in all", "only it is lost", "same weights")


@dataclass(frozen=True)
class Place:
    """Where the poisoned row is: line of the file, number among the rows, the seed under which it comes in `step`, that step's rows."""

    line: int
    row: int
    seed: int
    step: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--effects", nargs="+", default=["abort", "nan_loss", "hang", "oom"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for the runs, which are removed otherwise")
    arguments = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", flush=True)
    well = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        tokens = tokenised(arguments, folder)
        for effect in arguments.effects:
            chance = random.Random(f"{arguments.seed} {effect}")
            cells, fine = poisoned(effect, place_of(tokens, arguments, chance), arguments, folder / effect)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            well = well and fine
    return 0 if well else 1


def config_of(arguments: argparse.Namespace, seed: int, steps: int) -> dict[str, Any]:
    train = {"steps": steps, "effective_batch": arguments.batch, "lr": 1e-3, "max_tokens": 256, "threads": arguments.threads, "seed": seed}
    return {
        "model": str(arguments.model.resolve()),
        "data": {"files": str(arguments.rows.resolve()), "held_out": 0.005},
        "adapter": {"r": 8, "dropout": 0.05},
        "train": train,
        "evaluate": {"generate": 0},
        "run": {"hang_s": 10.0},
    }


def tokenised(arguments: argparse.Namespace, folder: Path) -> TokenSet:
    """The rows as every run of these has them, from a run of one step."""
    train(config_of(arguments, 0, 1), folder / "probe")
    return load_tokens(RunFolder(folder / "probe" / "run").data_file)


def place_of(tokens: TokenSet, arguments: argparse.Namespace, chance: random.Random) -> Place:
    """A line drawn from all of the file, and the first seed under which it is trained within the first steps."""
    lines = sum(1 for _ in arguments.rows.open("rb"))
    while True:
        line = chance.randrange(lines) + 1
        found = np.flatnonzero(np.asarray(tokens.line) == line)
        if len(found) == 1:
            break
        print(f"line {line} was rejected by the data check; drawing another", file=sys.stderr)
    row = int(found[0])
    for seed in range(1, 1000):
        config = Config.model_validate(config_of(arguments, seed, WITHIN))
        table = step_table(tokens, split(tokens, config.data, seed)[0], config.data, config.train)
        for step in range(1, WITHIN + 1):
            if row in table.samples(step, WITHIN * arguments.batch):
                return Place(line, row, seed, step)
    raise SystemExit(f"line {line} comes within the first {WITHIN} steps under none of 999 seeds")


def poisoned(effect: str, place: Place, arguments: argparse.Namespace, folder: Path) -> tuple[tuple[object, ...], bool]:
    """(the cells of the table, whether all was as it is to be)"""
    steps = place.step + AFTER
    config = config_of(arguments, place.seed, steps)
    fault = {"name": "poison", "when": {"sample": f"{arguments.rows.name}:{place.line}"}, "effect": effect}
    began = time.perf_counter()
    summary = train(config, folder, [fault])
    seconds = time.perf_counter() - began
    run = folder / "run"
    trials = len(list(run.glob("trials/*/trial.json")))
    quarantined = [row["line"] for row in summary["quarantined"]]
    rows = read(run / "steps.jsonl")
    whole = all(len(row["samples"]) == arguments.batch - (row["step"] == place.step) for row in rows)
    alone = quarantined == [place.line] and [row["step"] for row in rows] == list(range(1, steps + 1)) and whole
    learned = read(run / "timeline.jsonl")[1:]
    same = never(config, place, learned, folder.with_name(f"{folder.name}-never")) == summary["artifact_sha256"]
    events = read(run / "events.jsonl")
    first = next(event["time"] for event in events if event["event"] == "attempt_ended")
    found = next((event["time"] - first for event in events if event["event"] == "remedy_applied"), None)
    until = "never" if found is None else f"{found:.0f}"
    cells = (effect, place.line, place.step, summary["attempts"], trials, until, f"{seconds:.0f}")
    return (*cells, "yes" if alone else f"no: {quarantined}", "yes" if same else "no"), alone and same and trials <= 20


def never(config: dict[str, Any], place: Place, learned: list[dict[str, Any]], folder: Path) -> str:
    """The weights of a run that never had the row: stopped before it trained, then told to leave the row out from its first step on."""
    command, run = begin(config, folder), folder / "run"
    with (folder / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
        while not (run / "config.yaml").exists() and child.poll() is None:
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        child.wait()
    if RunFolder(run).committed() >= place.step:
        raise SystemExit(f"{run} trained the row before it could be stopped")
    with (run / "timeline.jsonl").open("a") as timeline:
        first = {"from_step": 1, "settings": {"quarantine": [place.row]}, "reason": "never had it"}
        timeline.writelines(json.dumps(entry) + "\n" for entry in (first, *learned))
    sha256: str = finish(command)["artifact_sha256"]
    return sha256


def train(config: dict[str, Any], folder: Path, faults: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return finish(begin(config, folder, faults))


def begin(config: dict[str, Any], folder: Path, faults: list[dict[str, Any]] | None = None) -> list[str]:
    """Write a config; the command that trains it."""
    folder.mkdir()
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    (folder / "f.yaml").write_text(yaml.safe_dump(faults or []))
    more = ["--faults", str(folder / "f.yaml")] if faults else []
    return [sys.executable, "-m", "holdfast", "train", str(folder / "c.yaml"), "--run", str(folder / "run"), "--json", *more]


def finish(command: list[str]) -> dict[str, Any]:
    """Its summary, also where the run was given up; what it says goes to standard error."""
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 3):
        raise SystemExit(f"exit code {done.returncode}: {' '.join(command)}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    raise SystemExit(main())
