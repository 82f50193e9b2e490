"""`holdfast data make`: write instruction rows from a recipe, or have a language model write them from it."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import orjson

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, replacing
from holdfast.base.inert import say
from holdfast.cli.commands.data import write as data_write
from holdfast.data.duplicates.write import refuse_outputs
from holdfast.data.recipe.generate import Row, make_set
from holdfast.data.recipe.recipe import Recipe, difficulty_shares, load_recipe
from holdfast.terminal.counting import counting

EXAMPLE = "holdfast data make --rows 1500 --out runs/rows.jsonl --held-out runs/held-out.jsonl"


def add_arguments(make: argparse.ArgumentParser) -> None:
    make.add_argument("--rows", type=int, metavar="N", help="how many rows, held-out ones included (default: the recipe's, 1500)")
    make.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the rows go (JSON Lines)")
    make.add_argument("--held-out", type=Path, metavar="FILE", help="where the held-out tenth goes (default: into --out, with the others)")
    make.add_argument("--recipe", type=Path, metavar="FILE", help="a recipe (default: Linux and AI operations, 24 categories)")
    make.add_argument("--seed", type=int, help="the same seed gives the same rows (default: the recipe's, 0)")
    make.add_argument("--difficulty", metavar="NAME=PART,..", help="parts of easy, medium and hard rows, e.g. easy=6,medium=3,hard=1")
    make.add_argument("--near-duplicates", type=float, metavar="SHARE", help="largest share of them (default: the recipe's, 0.02)")
    data_write.add_arguments(make)
    make.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    try:
        recipe = _recipe_of(arguments)
    except (OSError, ValueError) as error:
        raise Stop(USAGE, str(error), "the shipped recipe shows the form: docs/reference/recipes.md") from None
    refuse_outputs([file for file in (arguments.out, arguments.held_out) if file], [str(arguments.recipe)] if arguments.recipe else [])
    if arguments.endpoint:
        rows, more = data_write.written(arguments, recipe)
    else:
        rows, more = _drawn(recipe)
    parts = _by_file(rows, arguments.out, arguments.held_out)
    _write(parts, arguments.out)
    data_write.finished(arguments)
    counts = Counter(row["category"] for row in rows)
    if not arguments.json:
        written = ", ".join(f"{file} ({len(chosen):,})" for file, chosen in parts.items())
        say(f"{len(rows):,} rows in {len(counts)} categories: {written}")
        for line in more.pop("told", ()):
            say(f"  {line}")
    more.pop("told", None)
    return DONE, {"rows": len(rows), "by_category": dict(sorted(counts.items())), **more, "seed": recipe.seed, "recipe": recipe.name}


def _recipe_of(arguments: argparse.Namespace) -> Recipe:
    """Read the recipe and apply what the command line says otherwise. Raises Stop(2) or ValueError."""
    recipe = load_recipe(arguments.recipe)
    if arguments.rows is not None:
        if arguments.rows < 1:
            raise Stop(USAGE, f"--rows {arguments.rows}: at least 1 is needed", f"for example: {EXAMPLE}")
        recipe = dataclasses.replace(recipe, rows=arguments.rows)
    if arguments.seed is not None:
        recipe = dataclasses.replace(recipe, seed=arguments.seed)
    if arguments.near_duplicates is not None:
        if not 0 <= arguments.near_duplicates <= 1:
            raise Stop(USAGE, f"--near-duplicates {arguments.near_duplicates}: a share from 0 to 1 is needed", "for example: 0.02")
        recipe = dataclasses.replace(recipe, near_duplicates=arguments.near_duplicates)
    if arguments.difficulty is not None:
        try:
            parts = {name.strip(): float(part) for name, _, part in (one.partition("=") for one in arguments.difficulty.split(","))}
            recipe = dataclasses.replace(recipe, shares=difficulty_shares(parts))
        except ValueError as error:
            raise Stop(USAGE, f"--difficulty {arguments.difficulty}: {error}", "for example: --difficulty easy=6,medium=3,hard=1") from None
    return recipe


def _drawn(recipe: Recipe) -> tuple[list[Row], Json]:
    try:
        with counting("drawing rows", recipe.rows) as advance:
            made = make_set(recipe, recipe.rows, recipe.seed, lambda new: advance(new, ""))
    except ValueError as error:
        raise Stop(USAGE, str(error), "`--rows` says how many, `--near-duplicates` how many may be alike") from None
    checked: Json = {"near_duplicates": made.near_duplicates, "facts": {"used": made.facts_used, "known": made.facts_known}}
    difficulties = Counter(row.get("difficulty", next(iter(recipe.shares), "mixed")) for row in made.rows)
    checked["by_difficulty"] = dict(difficulties)
    told = [f"{made.near_duplicates:,} nearly like an earlier one ({made.near_duplicates / len(made.rows):.1%})"]
    if made.facts_known:
        told.append(f"{made.facts_used:,} of {made.facts_known:,} facts used")
    return made.rows, checked | {"told": told}


def _write(parts: dict[Path, list[Json]], out: Path) -> None:
    try:
        for file, chosen in parts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(file) as handle:
                handle.writelines(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in chosen)
    except OSError as error:
        raise at_place(error, error.filename or out, "cannot be written", "choose another --out") from None


def _by_file(rows: Sequence[Row], out: Path, held_out: Path | None) -> dict[Path, list[Json]]:
    parts: dict[Path, list[Json]] = {out: []} if held_out is None else {out: [], held_out: []}
    for row in rows:  # which part a row is of, its file says: as a field of rows it would look as if it changed their meaning
        parts[out if held_out is None or row["split"] == "train" else held_out].append(
            {name: value for name, value in row.items() if name != "split"}
        )
    return parts
