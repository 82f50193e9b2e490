"""`holdfast data sample`: draw rows by seed, in their order, stratified by a field if you name one. Changes no row and no input."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.data.duplicates.keys import keys_of, lines_of
from holdfast.data.duplicates.portion import amount_of, divide
from holdfast.data.duplicates.write import refuse_outputs, write_lines
from holdfast.data.files.paths import expand

EXAMPLE = "holdfast data sample rows.jsonl --rows 500 --out sample.jsonl --stratify category"


def add_arguments(sample: argparse.ArgumentParser) -> None:
    sample.add_argument("paths", nargs="+", metavar="PATH", help="files, folders, or patterns in quotes")
    sample.add_argument("--rows", required=True, metavar="AMOUNT", help="how many: a count (500) or a share (0.1)")
    sample.add_argument("--out", type=Path, required=True, metavar="FILE", help="where they go (JSON Lines)")
    sample.add_argument("--stratify", default="", metavar="FIELD", help="keep the proportions of this field's values")
    sample.add_argument("--equal", action="store_true", help="with --stratify: equally many of each value, as far as there are enough")
    sample.add_argument("--seed", type=int, default=0, help="the same seed draws the same rows (default: 0)")
    sample.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if arguments.equal and not arguments.stratify:
        raise Stop(USAGE, "--equal needs a field", "for example: --stratify category --equal")
    amount = amount_of(arguments.rows)
    if amount.count is None and amount.share is None:
        raise Stop(USAGE, "--rows rest: a sample has a count or a share", "for example: --rows 0.1")
    if amount.count == 0:
        raise Stop(USAGE, f"--rows {arguments.rows}: at least 1 is needed", "for example: --rows 500, or --rows 0.1")
    files = expand(arguments.paths)
    refuse_outputs([arguments.out], files)
    keys = keys_of(lines_of(files, whole=True), arguments.stratify, compared=False)
    if arguments.stratify and keys.categories == ("",):
        raise Stop(USAGE, f"no row has a field {arguments.stratify!r}", "name another one")
    if (amount.count or 0) > len(keys):
        raise Stop(BLOCKED, f"{amount.count:,} rows are asked for, there are {len(keys):,}", "ask for fewer, or for a share")
    if len(keys) and round(amount.rows(len(keys))) == 0:
        raise Stop(USAGE, f"--rows {arguments.rows} of {len(keys):,} rows is less than one", "give a larger share, or a count")
    part = divide(keys, [amount], arguments.seed, np.arange(len(keys)), equal=arguments.equal)
    (written,) = write_lines(files, len(keys), [arguments.out], lambda number, _: int(part[number]))
    counts = np.bincount(keys.category[part == 0], minlength=len(keys.categories))
    by_category = dict(zip(keys.categories, counts.tolist(), strict=True)) if arguments.stratify else {}
    if not arguments.json:
        say(f"{written:,} of {len(keys):,} rows: {arguments.out}")
        for name, count in by_category.items():
            say(f"{count:>10,}  {name or '(none)'}")
    return DONE, {"rows": len(keys), "sampled": written, "out": str(arguments.out), "by_category": by_category}
