r"""Speed and peak memory of holdfast against its peers: the same rows, shape, batch and arithmetic, contenders in turn, several rounds.

    python benchmarks/engine/speed.py --model MODEL --rows ROWS.jsonl --peers FOLDER --out FOLDER [--steps N] [--rounds N] \
        [--only NAME ...] [--kind KIND]

Prints and appends a Markdown table per row file: medians of trained (non-padding) tokens per CPU second and per second after the
warm-up steps, ratios of holdfast to each contender within a round, peak memory, time to the first step, and how far the losses of
those that train the same rows in the same order are from the Trainer's. Then the verdict on each aim.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import contenders
from race import Race, add_arguments, open_race, versions
from work import Work, pad_token, pairs_of

from tables import Rounds, add_to, loss_gap, median, ratio, table

COLUMNS = (
    "contender",
    "tokens/CPU s",
    "tokens/s",
    "holdfast is x, per CPU s",
    "holdfast is x, per s",
    "peak MB, largest process",
    "all processes",
    "holdfast uses x of it",
    "padding",
    "tokens a step",
    "first step s",
    "whole run s",
    "loss: largest difference (steps)",
)
SAME_ROWS = (
    "holdfast",
    "hf-plain",
    "hf-plain-bf16",
    "trl-free-bf16",
    "trl-plain",
    "trl-plain-bf16",
    "trl-free",
    "trl-default",
    "torchtune-plain",
    "llamafactory-plain",
    "axolotl-plain",
)
REFERENCES = ("hf-plain", "trl-plain")  # the Trainer in fp32; it has no DPO
TOLERANCE = 2e-3
FULL_LR = 5e-5  # of all weights


def run_rounds(race: Race, work: Work, names: list[str], rounds: int, overrides: dict[str, list[str]]) -> Rounds:
    """All contenders in turn, holdfast first; every second round backwards."""
    results: Rounds = {}
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            result = race.run(name, work, number, overrides.get(name))
            results.setdefault(name, []).append(result)
            speed = (
                f"{result.per_cpu_second:,.0f} tokens/CPU s" if result.per_cpu_second else f"{result.steps} steps, exit code {result.code}"
            )
            print(f"round {number + 1} {name}: {speed}, {result.largest_bytes >> 20} MB, {result.total_s:.0f} s", flush=True)
    return results


def rows_of(results: Rounds, ours: str = "holdfast") -> list[list[object]]:
    rows = []
    for name, rounds in results.items():
        good = [result for result in rounds if result.steady_steps]
        if not good:
            rows.append([name, f"failed (exit code {rounds[0].code})", *[None] * (len(COLUMNS) - 2)])
            continue
        gap = loss_gap(results, name, reference_of(results)) if name in SAME_ROWS or name.startswith("holdfast") else None
        rows.append(
            [
                name,
                median([result.per_cpu_second for result in good]),
                median([result.per_second for result in good]),
                ratio(results, ours, name, lambda result: result.per_cpu_second),
                ratio(results, ours, name, lambda result: result.per_second),
                median([result.largest_bytes / 1e6 for result in good]),
                median([result.together_bytes / 1e6 for result in good]),
                ratio(results, ours, name, lambda result: float(result.largest_bytes)),
                _percent(median([result.padding for result in good])),
                median([result.tokens / result.steps for result in good]),
                median([result.first_step_s for result in good]),
                median([result.total_s for result in good]),
                f"{gap[0]:.1e} ({gap[1]})" if gap else None,
            ]
        )
    return rows


def reference_of(results: Rounds) -> str:
    return next((name for name in REFERENCES if name in results), REFERENCES[0])


def slowest_and_biggest(results: Rounds) -> str:
    """Beside which peer holdfast is nearest to being slower, and to being bigger."""
    lines = []
    for what, of, worst in (
        ("{:.2f}x the tokens per CPU second of {}, the fastest peer", lambda result: result.per_cpu_second, min),
        ("{:.2f}x the memory of {}, the smallest peer", lambda result: float(result.largest_bytes), max),
    ):
        found = {name: ratio(results, "holdfast", name, of) for name in results if not name.startswith("holdfast")}
        known = {name: value for name, value in found.items() if value}
        if known:
            nearest = worst(known, key=lambda name: known[name])
            lines.append(f"* {what.format(known[nearest], nearest)}")
    return "\n".join(lines)


def verdict(results: Rounds) -> str:
    """Each aim with the number that was reached."""
    reference = reference_of(results)
    plain = [name for name in contenders.PLAIN if any(result.steady_steps for result in results.get(name, []))]
    best = [name for name in (*contenders.BEST, *contenders.BF16) if any(result.steady_steps for result in results.get(name, []))]
    lines = []
    for aim, names in ((4.0, [reference]), (3.0, plain), (2.0, best)):
        found = {name: ratio(results, "holdfast", name, lambda result: result.per_cpu_second) for name in names}
        known = {name: value for name, value in found.items() if value}
        if known:
            nearest = min(known, key=lambda name: known[name])
            words = {4.0: "the Trainer", 3.0: "the best peer at plain settings", 2.0: "the best peer at its best setting"}[aim]
            lines.append(f"* {aim:.0f}x {words} aimed at, **{known[nearest]:.2f}x** reached ({nearest}, per CPU second)")
    shares = {name: ratio(results, "holdfast", name, lambda result: float(result.largest_bytes)) for name in [*plain, *best]}
    shares = {name: share for name, share in shares.items() if share}
    if shares:
        worst = max(shares, key=lambda name: shares[name])
        trainers = f"**{shares[reference]:.2f}x** of the Trainer's, " if reference in shares else ""
        lines.append(f"* at most 0.5x the memory aimed at, {trainers}{shares[worst]:.2f}x of {worst}'s")
    for name in ("holdfast-fp32", "holdfast", "hf-plain-bf16"):
        gap = loss_gap(results, name, reference)
        if gap:
            word = "agree" if gap[0] <= TOLERANCE else "DISAGREE"
            told = f"* the first {gap[1]} losses of {name} {word} with the Trainer's in fp32: largest difference {gap[0]:.1e}"
            lines.append(f"{told}, tolerance {TOLERANCE:.0e}")
    return "\n".join(lines)


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def chosen(race: Race, only: list[str] | None) -> list[str]:
    names = [name for name in (only or contenders.PLAIN + contenders.BEST) if name != "holdfast"]
    missing = [name for name in names if not race.has(name)]
    if missing:
        print(f"not run, no environment: {', '.join(missing)}", flush=True)
    return ["holdfast", *(name for name in names if name not in missing)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="JSONL with instruction, input, output")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=8, help="first steps left out of the steady numbers")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", metavar="NAME", help=f"of {', '.join(contenders.NAMES)}")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME:KEY=VALUE,...", help="holdfast with other settings, too")
    parser.add_argument(
        "--kind", choices=contenders.KINDS, default="lora", help="what is trained on what; all but lora: Trainer and TRL only"
    )
    add_arguments(parser)
    given = parser.parse_args()
    if given.smoke:
        given.steps, given.warmup, given.rounds = 6, 2, 1
    race = open_race(given, given.warmup)
    overrides = {f"holdfast-{name}": keys.split(",") for name, _, keys in (entry.partition(":") for entry in given.variant)}
    names = chosen(race, given.only)
    names[1:1] = overrides
    for rows in given.rows:
        model = given.model.resolve()
        asked = pairs_of(rows, race.folder / f"pairs-{rows.name}") if given.kind == "dpo" else rows
        lr = FULL_LR if given.kind == "full" else Work.lr
        work = Work(str(model), str(asked.resolve()), "", given.steps, lr=lr, threads=given.threads, pad=pad_token(model), kind=given.kind)
        results = run_rounds(race, work, names, given.rounds, overrides)
        load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
        note = (
            f"{given.steps} steps of {work.batch} rows, the first {given.warmup} left out, {given.rounds} rounds; load at the end {load}."
        )
        title = f"{model.name} on {rows.stem}" + (f", {given.kind}" if given.kind != "lora" else "")
        reached = verdict(results) if given.kind == "lora" else slowest_and_biggest(results)
        add_to(
            given.out / "tables.md",
            title,
            f"{note}\n\n{table(COLUMNS, rows_of(results))}\n\n{reached}\n\n{versions(race, names)}.",
        )


if __name__ == "__main__":
    main()
