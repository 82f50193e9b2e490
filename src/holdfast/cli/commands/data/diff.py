"""`holdfast data diff`: what changed between two versions of a set of rows. Changes nothing.

Rows are matched by value, then by prompt and answer but for case and spaces (alike), then by prompt alone (another answer). The order
and the form of the files do not matter.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import DONE
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.data.duplicates.difference import ALONE, CHANGED, difference, kinds
from holdfast.data.duplicates.keys import RowKeys, keys_of, lines_of
from holdfast.data.files.paths import expand
from holdfast.report.words import visible

EXAMPLE = "holdfast data diff old.jsonl new.jsonl --by category"
_QUOTED, _SHOWN = 5, 160


def add_arguments(diff: argparse.ArgumentParser) -> None:
    diff.add_argument("before", metavar="A", help="the older version: a file, a folder, or a pattern in quotes")
    diff.add_argument("after", metavar="B", help="the newer version")
    diff.add_argument("--by", default="", metavar="FIELD", help="count the rows by the values of this field, too")
    diff.add_argument("--json", action="store_true", help="print the differences as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    old, new = expand([arguments.before], "all"), expand([arguments.after], "all")
    a, b = (keys_of(lines_of(files, whole=False), arguments.by, compared=False) for files in (old, new))
    found = difference(a, b)
    same, alike, changed, removed = kinds(found.before)
    answer: Json = {
        "rows": {"before": len(a), "after": len(b)},
        "same": same,
        "alike": alike,
        "answer_changed": changed,
        "removed": removed,
        "added": kinds(found.after)[ALONE],
        "reordered": found.moved,
        "examples": {
            "removed": _quoted(old, found.before == ALONE),
            "added": _quoted(new, found.after == ALONE),
            "answer_changed": _quoted(new, found.after == CHANGED),
        },
    }
    if arguments.by:
        counts = [_counted(keys) for keys in (a, b)]
        names = sorted(counts[0] | counts[1])
        answer["by_category"] = {name: {"before": counts[0].get(name, 0), "after": counts[1].get(name, 0)} for name in names}
    if not arguments.json:
        _tell(answer)
    return DONE, answer


def _counted(keys: RowKeys) -> dict[str, int]:
    return dict(zip(keys.categories, np.bincount(keys.category, minlength=len(keys.categories)).tolist(), strict=True))


def _quoted(files: list[str], wanted: npt.NDArray[np.bool_]) -> list[Json]:
    """Return the first few rows that are wanted."""
    chosen = set(np.flatnonzero(wanted)[:_QUOTED].tolist())
    found: list[Json] = []
    for number, line in enumerate(lines_of(files, whole=False) if chosen else ()):
        if number in chosen:
            found.append({"file": line.source.file, "line": line.source.line, "text": line.text.decode("utf-8", "replace")[:_SHOWN]})
            if len(found) == len(chosen):
                break
    return found


def _tell(answer: Json) -> None:
    before, after = answer["rows"]["before"], answer["rows"]["after"]
    say(f"{before:,} rows before, {after:,} after" + (", in another order" if answer["reordered"] else ""))
    for name, words in (
        ("same", "the same"),
        ("alike", "with the same texts but for case and spaces, or with other fields"),
        ("answer_changed", "with another answer to the same prompt"),
        ("removed", "gone"),
        ("added", "new"),
    ):
        if answer[name]:
            say(f"{answer[name]:>10,}  {words}")
        for row in answer["examples"].get(name, [])[:2]:
            say(f"            {row['file']}:{row['line']}  {visible(row['text'])}")
    for name, counts in answer.get("by_category", {}).items():
        if counts["before"] != counts["after"]:
            say(f"{counts['after'] - counts['before']:>+10,}  {name or '(none)'} ({counts['before']:,} to {counts['after']:,})")
