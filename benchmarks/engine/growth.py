"""How time and memory grow: with sequence length, vocabulary, rank, batch, and with the number of rows.

    python benchmarks/engine/growth.py AXIS ... --out FOLDER [--values N ...] [--tokenizer FOLDER] [--peers FOLDER --against hf-plain]

AXIS: length vocabulary rank batch rows. One axis changes, the others stay at 256 tokens a row, vocabulary 8,192, rank 8, 8 rows a step,
the 12M shape (of 2 layers for length). On the axes length and batch a step holds about --step-tokens tokens, at least one row.
Peers are run up to --against-up-to of an axis. The file of an axis rows value is made, used and deleted.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from made_rows import Writer
from make_models import TINY
from race import Race, add_arguments, open_race
from speed import run_rounds
from work import Work, pad_token

from tables import Rounds, add_to, median, table

AXES = {
    "length": [128, 512, 2048, 8192, 32768],
    "vocabulary": [8192, 32768, 151936],
    "rank": [4, 16, 64, 256],
    "batch": [1, 4, 16, 64, 256],
    "rows": [10_000, 100_000, 1_000_000, 10_000_000],
}
SMOKE = {"length": [64, 256], "vocabulary": [8192, 16384], "rank": [4, 8], "batch": [1, 4], "rows": [1000, 10_000]}
ROW_TOKENS = 32  # on the axis rows
COLUMNS = (
    "value",
    "contender",
    "s a step",
    "tokens/CPU s",
    "tokens/s",
    "peak MB, largest process",
    "all processes",
    "first step s",
    "CPU s until then",
    "rows/s until then",
)


def work_for(race: Race, axis: str, value: int, given: argparse.Namespace) -> Work:
    """Make the model and the rows of one point, and say what is to be done with them."""
    layers = ["--layers", "2"] if axis == "length" else []
    vocabulary = value if axis == "vocabulary" else 8192
    model = _model(race, given, [*layers, "--vocabulary", str(vocabulary)], f"model-{len(layers)}-{vocabulary}")
    tokens = value if axis == "length" else 256
    batch = {"length": max(1, given.step_tokens // tokens), "batch": value}.get(axis, 8)
    file = race.folder.resolve() / f"{axis}-{value}.jsonl"
    writer = Writer(model)
    if axis == "rows":
        writer.write_many(file, value, ROW_TOKENS)
        tokens = 512
    else:
        writer.write(file, [tokens] * (batch * given.steps))
    rank = value if axis == "rank" else 8
    return Work(
        str(model), str(file), "", given.steps, batch, rank, 2 * rank, max_tokens=tokens, threads=given.threads, pad=pad_token(model)
    )


def _model(race: Race, given: argparse.Namespace, switches: list[str], name: str) -> Path:
    folder = race.folder.resolve() / name
    if not folder.exists():
        program = str(Path(__file__).with_name("make_models.py"))
        size = "test" if given.smoke else "12m"
        command = [race.holdfast, program, str(folder), "--size", size, "--tokenizer", str(given.tokenizer), *switches]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return folder


def lines(axis: str, value: int, results: Rounds) -> list[list[object]]:
    found = []
    for name, rounds in results.items():
        good = [result for result in rounds if result.steady_steps]
        if not good:
            found.append([f"{value:,}", name, f"failed (exit code {rounds[0].code})", *[None] * (len(COLUMNS) - 3)])
            continue
        first = median([result.first_step_s for result in good])
        numbers = (
            median([result.steady_s / result.steady_steps for result in good]),
            median([result.per_cpu_second for result in good]),
            median([result.per_second for result in good]),
            median([result.largest_bytes / 1e6 for result in good]),
            median([result.together_bytes / 1e6 for result in good]),
            first,
            median([result.first_step_cpu_s for result in good]),
            value / first if axis == "rows" and first else None,
        )
        found.append([f"{value:,}", name, *numbers])
    return found


def _clear(race: Race, work: Work) -> None:
    """Delete the rows of a point and what runs made of them: millions of rows fill a disk."""
    for file in (Path(work.rows), *race.folder.glob("rows-*"), *race.folder.glob("*/run/data.*")):
        if file.exists() and file.stat().st_size > 1 << 20:
            file.unlink()
    race.rows_of_peers.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axes", nargs="+", choices=AXES, metavar="AXIS")
    parser.add_argument("--values", type=int, nargs="+", help="other points than the usual ones")
    parser.add_argument("--tokenizer", type=Path, default=TINY)
    parser.add_argument("--against", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--against-up-to", type=int, default=10**9, metavar="VALUE")
    parser.add_argument("--step-tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    add_arguments(parser)
    given = parser.parse_args()
    if given.smoke:
        given.steps, given.step_tokens, given.rounds = 3, 512, 1
    race = open_race(given, given.warmup)
    for axis in given.axes:
        found: list[list[object]] = []
        for value in given.values or (SMOKE if given.smoke else AXES)[axis]:
            work = work_for(race, axis, value, given)
            peers = [name for name in given.against if race.has(name) and value <= given.against_up_to]
            found += lines(axis, value, run_rounds(race, work, ["holdfast", *peers], given.rounds, {}))
            _clear(race, work)
        add_to(given.out / "tables.md", f"Growth with {axis}", table(COLUMNS, found))


if __name__ == "__main__":
    main()
