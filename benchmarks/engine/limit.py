"""The limit: the matrix products of a run's steps alone, for the same tokens. How close holdfast comes, and what the rest is.

    python benchmarks/engine/limit.py --model MODEL --rows ROWS.jsonl --out FOLDER [--steps N] [--rounds N]

Each round trains, then times the products and the other arithmetic of the same steps (products.py), so that both see the same machine.
Lengths and labels of each step are counted with the model's tokenizer and must add up to what holdfast's journal says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

from race import Race, Result, add_arguments, open_race
from tokenizers import Tokenizer
from work import Work, pad_token

from tables import add_to, table

KINDS = {"fp32": "float32", "bf16": "bfloat16"}
COLUMNS = ("part of a step", "ms", "CPU ms", "share of holdfast's step", "share of its CPU time")


def steps_of(work: Work, rows: Path, journal: Path) -> list[dict[str, object]]:
    """Row lengths and the number of labels of each step. Raises SystemExit when they are not those of the journal."""
    tokenizer = Tokenizer.from_file(str(Path(work.model) / "tokenizer.json"))
    found = []
    lines = iter(rows.open(encoding="utf-8"))
    for entry in map(json.loads, journal.open()):
        lengths, labels = [], 0
        for _ in entry["samples"]:
            row = json.loads(next(lines))
            question = f"{row['instruction']}\n{row['input']}" if row["input"].strip() else row["instruction"]
            given = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            parts = [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in (given, f"{row['output']}<|im_end|>\n")]
            lengths.append(min(work.max_tokens, sum(parts)))
            labels += max(0, lengths[-1] - parts[0])
        if (sum(lengths), labels) != (entry["tokens"], entry["labels"]):
            counted, written = f"{sum(lengths)} tokens, {labels} labels", f"{entry['tokens']}, {entry['labels']}"
            raise SystemExit(f"step {entry['step']}: counted {counted}; the journal has {written}")
        found.append({"lengths": lengths, "labels": labels})
    return found


def time_products(race: Race, work: Work, steps: list[dict[str, object]], precision: str) -> dict[str, tuple[float, float]]:
    """Mean seconds and CPU seconds of a step, by piece."""
    file = race.folder / "products.json"
    config = json.loads((Path(work.model) / "config.json").read_text())
    file.write_text(json.dumps({"config": config, "rank": work.rank, "threads": work.threads, "steps": steps, "kind": KINDS[precision]}))
    command = [race.holdfast, str(Path(__file__).with_name("products.py")), str(file)]
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}  # threads that wait for each other sleep, as in holdfast's trainer
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)
    return {name: (statistics.fmean(one[0] for one in times), statistics.fmean(one[1] for one in times)) for name, times in found.items()}


def report(runs: list[Result], pieces: list[dict[str, tuple[float, float]]]) -> str:
    step = tuple(
        statistics.median(of(run) / run.steady_steps for run in runs) for of in (lambda run: run.steady_s, lambda run: run.steady_cpu_s)
    )
    middle = {name: tuple(statistics.median(one[name][at] for one in pieces) for at in (0, 1)) for name in pieces[0]}
    products = tuple(sum(times[at] for name, times in middle.items() if name.startswith("products")) for at in (0, 1))
    rest = tuple(step[at] - sum(times[at] for times in middle.values()) for at in (0, 1))
    entries = {
        "**all matrix products: the limit**": products,
        **middle,
        "the rest: calls, copies, allocator, snapshot, journal, supervisor": rest,
    }
    entries["**holdfast's step**"] = step
    rows = [[name, 1e3 * wall, 1e3 * cpu, f"{wall / step[0]:.0%}", f"{cpu / step[1]:.0%}"] for name, (wall, cpu) in entries.items()]
    tokens = sum(run.steady_tokens for run in runs) / sum(run.steady_steps for run in runs)
    wall, cpu = (f"{products[at] / step[at]:.0%}" for at in (0, 1))
    close = f"{tokens:.0f} tokens a step. Holdfast reaches **{wall}** of the limit's speed ({cpu} by CPU time):"
    return f"{table(COLUMNS, rows)}\n\n{close} {tokens / step[0]:,.0f} of {tokens / products[0]:,.0f} tokens/s."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", choices=KINDS, default="fp32")
    add_arguments(parser)
    given = parser.parse_args()
    if given.smoke:
        given.steps, given.warmup, given.rounds = 6, 2, 1
    race = open_race(given, given.warmup)
    model = given.model.resolve()
    work = Work(str(model), str(given.rows.resolve()), "", given.steps, threads=given.threads, pad=pad_token(model))
    runs, pieces = [], []
    for number in range(given.rounds):
        runs.append(race.run("holdfast", work, number, [f"train.precision={given.precision}"]))
        if runs[-1].code:
            raise SystemExit(f"holdfast ended with exit code {runs[-1].code}")
        rows = race.rows_of_peers[work.rows, work.steps * work.batch]
        journal = sorted(race.folder.glob("*-holdfast/run/steps.jsonl"))[-1]
        pieces.append(time_products(race, work, steps_of(work, rows, journal)[given.warmup :], given.precision))
    note = f"{given.steps} steps, the first {given.warmup} left out, medians of {given.rounds} rounds; {given.threads} threads."
    add_to(
        given.out / "tables.md", f"The limit in {given.precision}, {model.name} on {given.rows.stem}", f"{note}\n\n{report(runs, pieces)}"
    )


if __name__ == "__main__":
    main()
