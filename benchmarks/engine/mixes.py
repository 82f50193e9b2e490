"""Is holdfast ever slower? Row files of many length mixes, all rows of equal length included, against peers at plain and best settings.

    python benchmarks/engine/mixes.py --model MODEL --peers FOLDER --out FOLDER [--against NAME ...] [--steps N] [--rounds N]

One line per mix and peer: how many times as many tokens per CPU second and per second holdfast trains, and its share of the memory.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from made_rows import Writer
from race import add_arguments, open_race
from speed import run_rounds
from work import Work, pad_token

from tables import Rounds, add_to, median, ratio, table

AGAINST = ["hf-plain", "hf-group", "trl-free"]
COLUMNS = (
    "mix",
    "tokens a row",
    "contender",
    "tokens/CPU s",
    "holdfast is x, per CPU s",
    "holdfast is x, per s",
    "holdfast uses x of the memory",
)


def mixes(rows: int, shortest: int) -> dict[str, list[int]]:
    """Lengths of the rows of each mix, in file order."""
    draw = random.Random(0)
    found = {f"all {length}": [length] * rows for length in (32, 128, 512)}
    found["half 24, half 512"] = [24 if number % 2 else 512 for number in range(rows)]
    found["one of 512 in 16, else 24"] = [24 if number % 16 else 512 for number in range(rows)]
    found["even from 16 to 512"] = [draw.randint(16, 512) for _ in range(rows)]
    found["many short, few long"] = [min(512, max(16, round(draw.lognormvariate(3.7, 0.8)))) for _ in range(rows)]
    found["sorted, 16 to 512"] = sorted(found["even from 16 to 512"])
    return {name: [max(shortest, length) for length in lengths] for name, lengths in found.items()}


def lines(mix: str, lengths: list[int], results: Rounds) -> list[list[object]]:
    spread = f"{min(lengths)} to {max(lengths)}, mean {sum(lengths) / len(lengths):.0f}"
    rows: list[list[object]] = []
    for name, rounds in results.items():
        speed = median([result.per_cpu_second for result in rounds])
        of = (lambda result: result.per_cpu_second, lambda result: result.per_second, lambda result: float(result.largest_bytes))
        rows.append([mix, spread, name, speed, *(ratio(results, "holdfast", name, what) for what in of)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--against", nargs="+", default=AGAINST, metavar="NAME")
    parser.add_argument("--mix", nargs="+", metavar="NAME", help="only these mixes")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    add_arguments(parser)
    given = parser.parse_args()
    if given.smoke:
        given.steps, given.warmup, given.rounds, given.against = 4, 1, 1, given.against[:1]
    race = open_race(given, given.warmup)
    model = given.model.resolve()
    writer = Writer(model)
    found: list[list[object]] = []
    for mix, lengths in mixes(2 * given.steps * 8, writer.shortest).items():
        if (given.mix and mix not in given.mix) or (given.smoke and not mix.startswith(("all 32", "even"))):
            continue
        file = writer.write((race.folder / f"{mix.replace(' ', '-').replace(',', '')}.jsonl").resolve(), lengths)
        work = Work(str(model), str(file), "", given.steps, threads=given.threads, pad=pad_token(model))
        found += lines(mix, lengths, run_rounds(race, work, ["holdfast", *filter(race.has, given.against)], given.rounds, {}))
    slower = [row for row in found if row[2] != "holdfast" and isinstance(row[4], float) and row[4] < 1]
    verdict = f"Slower per CPU second in {len(slower)} of {sum(row[2] != 'holdfast' for row in found)} comparisons."
    add_to(given.out / "tables.md", f"Length mixes, {model.name}", f"{table(COLUMNS, found)}\n\n{verdict}")


if __name__ == "__main__":
    main()
