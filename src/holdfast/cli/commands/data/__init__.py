"""`holdfast data`: make rows, collect them, check them, clean them, divide them, compare them."""

from __future__ import annotations

import argparse

from holdfast.base.files import Json
from holdfast.base.tasks import own_verbs
from holdfast.cli.parser import add_verbs

EXAMPLE = "holdfast data check rows.jsonl --tokenizer ../models/Qwen2.5-0.5B --max-tokens 1024 --html rows.html"
_KINDS = {
    "check": "say of every row whether it can be trained on, and why not",
    "clean": "write the rows that can be trained on, and the others with their reasons",
    "show": "print a row as it is trained on, token by token",
    "split": "divide rows into files, similar rows in the same one",
    "sample": "draw rows by seed, evenly over a field",
    "diff": "say what changed between two versions of a set",
    "bars": "make features of minute bars of a market",
    "make": "write rows from a recipe, or have a model write them",
    "collect": "gather rows from logs, a Redis stream or a shell history",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_verbs(parser, "kind", _KINDS, "holdfast.cli.commands.data.", own_verbs("data"))


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    code, answer = arguments.kind_module.run(arguments)
    return code, answer
