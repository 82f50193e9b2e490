"""`holdfast data split`: split rows into files, near-duplicates all into the same one. Changes no row and no input.

Rows with the same texts, the same prompt, or texts that are nearly the same (about 80 %) go into one file together.
"""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.data.duplicates.keys import RowKeys, keys_of, lines_of
from holdfast.data.duplicates.portion import Amount, amount_of, by_hash, divide, groups
from holdfast.data.duplicates.write import refuse_outputs, write_lines
from holdfast.data.files.paths import expand

EXAMPLE = "holdfast data split rows.jsonl --into train.jsonl=0.9 --into held-out.jsonl=0.1 --stratify category"
_MOST_FILES = 200  # open at once


def add_arguments(split: argparse.ArgumentParser) -> None:
    split.add_argument("paths", nargs="+", metavar="PATH", help="files, folders, or patterns in quotes")
    split.add_argument(
        "--into", action="append", default=[], metavar="FILE=AMOUNT", help="a count (500), a share (0.1) or rest; several times"
    )
    split.add_argument("--stratify", default="", metavar="FIELD", help="split the rows of each value of this field in the same way")
    split.add_argument("--per", metavar="FIELD", help="instead of amounts: one file for each value of this field, in --out")
    split.add_argument("--out", type=Path, metavar="FOLDER", help="where the files of --per go")
    split.add_argument("--by-hash", action="store_true", help="by the prompt's hash: a row keeps its side when rows are added later")
    split.add_argument("--apart", action="store_true", help="split row by row, near-duplicates too (faster, but leaks)")
    split.add_argument("--seed", type=int, default=0, help="the same seed gives the same split (default: 0)")
    split.add_argument("--json", action="store_true", help="print the counts as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if (arguments.per is None) == (not arguments.into) or (arguments.per is None) != (arguments.out is None):
        raise Stop(USAGE, "say how to divide: --into FILE=AMOUNT, or --per FIELD --out FOLDER", f"for example: {EXAMPLE}")
    files = expand(arguments.paths)
    return _per_value(arguments, files) if arguments.per else _by_amounts(arguments, files)


def _by_amounts(arguments: argparse.Namespace, files: list[str]) -> tuple[int, Json]:
    outputs, amounts = _parts(arguments.into)
    refuse_outputs(outputs, files)
    keys = keys_of(lines_of(files, whole=True), arguments.stratify, compared=not arguments.apart)
    _refuse_amounts(amounts, keys, arguments.stratify)
    together = np.arange(len(keys)) if arguments.apart else groups(keys)
    part = (by_hash if arguments.by_hash else divide)(keys, amounts, arguments.seed, together)
    written = write_lines(files, len(keys), outputs, lambda number, _: int(part[number]))
    names = [str(output) for output in outputs]
    answer: Json = {
        "rows": len(keys),
        "files": dict(zip(names, written, strict=True)),
        "left_out": len(keys) - sum(written),
        "groups": int((together == np.arange(len(keys))).sum()),
        "largest_group": int(np.bincount(together).max(initial=0)) if len(keys) else 0,
    }
    if arguments.stratify:
        answer["by_category"] = {name: _of_category(keys, part, number, names) for number, name in enumerate(keys.categories)}
    if not arguments.json:
        _tell(answer)
    return DONE, answer


def _of_category(keys: RowKeys, part: npt.NDArray[np.int8], category: int, names: list[str]) -> dict[str, int]:
    counts = np.bincount(part[keys.category == category] + 1, minlength=len(names) + 1)[1:]
    return dict(zip(names, counts.tolist(), strict=True))


def _parts(into: list[str]) -> tuple[list[Path], list[Amount]]:
    """Parse files and amounts. Raises Stop(2) for what is none, for shares beyond one, and for rest given twice."""
    pairs = [text.rpartition("=") for text in into]
    if wrong := next((text for text, (file, _, _) in zip(into, pairs, strict=True) if not file), None):
        raise Stop(USAGE, f"--into {wrong}: write FILE=AMOUNT", "for example: --into train.jsonl=0.9")
    amounts = [amount_of(amount) for _, _, amount in pairs]
    shares = sum(amount.share or 0.0 for amount in amounts)
    if shares > 1 + 1e-9:
        raise Stop(USAGE, f"the shares make {shares:g} in all", "they may be 1 together; rest takes what is left")
    if amounts.count(Amount()) > 1:
        raise Stop(USAGE, "rest is given more than once", "give it to one file")
    if shares > 1 - 1e-9 and Amount() not in amounts:
        last = max(at for at, amount in enumerate(amounts) if amount.share is not None)
        amounts[last] = Amount()  # so that no row is lost to rounding
    return [Path(file) for file, _, _ in pairs], amounts


def _refuse_amounts(amounts: list[Amount], keys: RowKeys, field: str) -> None:
    wanted = sum(amount.count or 0 for amount in amounts)
    shares = int(sum(amount.share or 0.0 for amount in amounts) * len(keys) + 1e-9)
    if 0 < wanted <= len(keys) < wanted + shares:
        text = f"{wanted:,} rows and shares of {shares:,} are asked for, there are {len(keys):,}"
        raise Stop(BLOCKED, text, "ask for fewer rows, or for a smaller share")
    if wanted > len(keys):
        raise Stop(BLOCKED, f"{wanted:,} rows are asked for, there are {len(keys):,}", "ask for fewer, or for shares")
    if field and keys.categories == ("",):
        raise Stop(USAGE, f"no row has a field {field!r}", "`holdfast data check` shows the fields of rows it cannot read")


def _per_value(arguments: argparse.Namespace, files: list[str]) -> tuple[int, Json]:
    counts: Counter[str] = Counter()
    for line in lines_of(files, whole=True):
        counts[line.of(arguments.per)] += 1
    if not counts - Counter({"": counts[""]}):
        raise Stop(USAGE, f"no row has a field {arguments.per!r}", "name another one")
    if len(counts) > _MOST_FILES:
        raise Stop(BLOCKED, f"{arguments.per} has {len(counts):,} values, {_MOST_FILES} files at most are written", "choose another field")
    names = _file_names(sorted(counts))
    outputs = [arguments.out / name for name in names.values()]
    refuse_outputs(outputs, files)
    number_of = {value: number for number, value in enumerate(names)}
    written = write_lines(files, counts.total(), outputs, lambda _, line: number_of[line.of(arguments.per)])
    answer: Json = {"rows": counts.total(), "files": dict(zip(map(str, outputs), written, strict=True)), "left_out": 0}
    if not arguments.json:
        _tell(answer)
    return DONE, answer


def _file_names(values: list[str]) -> dict[str, str]:
    """Return a file name for each value, of characters every file system has; values without one are `none`.

    Names that differ in case alone are one file on many disks, and one of more than 255 bytes, or nearly so many, is on none.
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for value in values:
        name = re.sub(r"[^\w.-]+", "-", value).strip("-.")[:80].encode()[:200].decode(errors="ignore") or "none"
        while unicodedata.normalize("NFC", name).casefold() in taken:
            name += "-"
        taken.add(unicodedata.normalize("NFC", name).casefold())
        found[value] = f"{name}.jsonl"
    return found


def _tell(answer: Json) -> None:
    for file, rows in answer["files"].items():
        say(f"{rows:>10,}  {file}")
    if answer["left_out"]:
        say(f"{answer['left_out']:>10,}  left out")
    largest = answer.get("largest_group", 1)
    hang = f": {largest:,} of {answer['rows']:,} rows share a prompt or are nearly alike, and stay together (--apart parts them)"
    for file in (file for file, count in answer["files"].items() if answer["rows"] and not count):
        say(f"! {file} is empty{hang if largest > 1 else ''}")
    if "groups" in answer:
        say(f"{answer['rows']:,} rows in {answer['groups']:,} groups of similar rows; the largest has {answer['largest_group']:,}")
