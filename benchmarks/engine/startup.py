"""From the command to the first step, in seconds and CPU seconds, holdfast against its peers.

    python benchmarks/engine/startup.py --model MODEL --rows ROWS.jsonl --peers FOLDER --out FOLDER [--rounds N] [--only NAME ...]

Every contender reads, checks and tokenises the whole row file, loads the model and takes one step. Holdfast's step counts when it is
committed: snapshot sealed, row in the journal; a peer's when its optimizer has stepped. Contenders in turn, several rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import contenders
from race import add_arguments, open_race
from speed import chosen, run_rounds
from work import Work, pad_token

from tables import add_to, median, ratio, table

COLUMNS = ("contender", "first step s", "CPU s until then", "holdfast takes x of it", "x of its CPU s", "command to exit s", "peak MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(contenders.PLAIN), metavar="NAME")
    add_arguments(parser)
    given = parser.parse_args()
    if given.smoke:
        given.rounds = 1
    race = open_race(given, 1)
    model = given.model.resolve()
    work = Work(str(model), str(given.rows.resolve()), "", 1, threads=given.threads, pad=pad_token(model))
    results = run_rounds(race, work, chosen(race, given.only), given.rounds, {})
    found = []
    for name, rounds in results.items():
        times = [median([getattr(result, of) for result in rounds if result.steps]) for of in ("first_step_s", "first_step_cpu_s")]
        shares = [
            ratio(results, "holdfast", name, of) for of in (lambda result: result.first_step_s, lambda result: result.first_step_cpu_s)
        ]
        peak = median([result.largest_bytes / 1e6 for result in rounds])
        found.append([name, *times, *shares, median([result.total_s for result in rounds]), peak])
    note = f"{given.rounds} rounds in turn, every file in the page cache but for the first."
    add_to(given.out / "tables.md", f"Start-up, {model.name} on {given.rows.stem}", f"{note}\n\n{table(COLUMNS, found)}")


if __name__ == "__main__":
    main()
