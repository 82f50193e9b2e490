"""`holdfast data make`: write instruction rows from a recipe."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import orjson

from holdfast.core.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.core.files import Json, write_bytes
from holdfast.rows.generate import Row, load_recipe, make_rows

EXAMPLE = "holdfast data make --rows 1500 --out runs/rows.jsonl --held-out runs/held-out.jsonl"


def add_arguments(make: argparse.ArgumentParser) -> None:
    make.add_argument("--rows", type=int, required=True, metavar="N", help="how many rows, held-out ones included")
    make.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the rows go (JSON Lines)")
    make.add_argument(
        "--held-out", type=Path, metavar="FILE", help="where the held-out tenth goes (default: into --out, with a split field)"
    )
    make.add_argument("--recipe", type=Path, metavar="FILE", help="a recipe (default: Linux and AI operations, 24 categories)")
    make.add_argument("--seed", type=int, default=0, help="the same seed gives the same rows")
    make.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if arguments.rows < 1:
        raise Stop(USAGE, f"--rows {arguments.rows}: at least 1 is needed", f"for example: {EXAMPLE}")
    try:
        rows = make_rows(load_recipe(arguments.recipe), arguments.rows, arguments.seed)
    except (OSError, ValueError) as error:
        raise Stop(USAGE, str(error), "the shipped recipe shows the form") from None
    parts = _by_file(rows, arguments.out, arguments.held_out)
    try:
        for file, chosen in parts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in chosen))
    except OSError as error:
        raise Stop(BLOCKED, f"{error.filename or arguments.out} cannot be written: {error.strerror}", "choose another --out") from None
    counts = Counter(row["category"] for row in rows)
    if not arguments.json:
        written = ", ".join(f"{file} ({len(chosen):,})" for file, chosen in parts.items())
        print(f"{len(rows):,} rows in {len(counts)} categories: {written}")
    return DONE, {"rows": len(rows), "by_category": dict(sorted(counts.items()))}


def _by_file(rows: list[Row], out: Path, held_out: Path | None) -> dict[Path, list[Row]]:
    if held_out is None:
        return {out: rows}
    return {
        out: [row for row in rows if row["split"] == "train"],
        held_out: [row for row in rows if row["split"] == "held_out"],
    }
