"""`holdfast data`: make rows, collect them, check them, clean them, divide them, compare them."""

from __future__ import annotations

import argparse

from holdfast.core.files import Json
from holdfast.verbs import data_check, data_clean, data_collect, data_diff, data_make, data_sample, data_split

EXAMPLE = data_check.EXAMPLE
_KINDS = {
    "check": (data_check, "say of every row whether it can be trained on, and why not"),
    "clean": (data_clean, "write the rows that can be trained on, and the others with their reasons"),
    "split": (data_split, "divide rows into files, what is alike on one side"),
    "sample": (data_sample, "draw rows by seed, evenly over a field"),
    "diff": (data_diff, "say what changed between two versions of a set"),
    "make": (data_make, "write rows from a recipe, or have a model write them"),
    "collect": (data_collect, "gather rows from logs, a Redis stream or a shell history"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, (module, summary) in _KINDS.items():
        form, example = argparse.RawDescriptionHelpFormatter, f"example:\n  {module.EXAMPLE}"
        child = kinds.add_parser(name, help=summary, description=module.__doc__, epilog=example, formatter_class=form)
        module.add_arguments(child)


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    code, answer = _KINDS[arguments.kind][0].run(arguments)
    return code, answer
