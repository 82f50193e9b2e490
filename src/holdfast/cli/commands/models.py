"""`holdfast models`: list what was shipped and what is in use, promote another version, or roll back."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.export.registry import promote, read_registry, registry_file, rollback

EXAMPLE = "holdfast models promote first 1 --force 'a trial'"
ACTIONS = {"list": 0, "promote": 2, "rollback": 1}  # and how many words follow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="list|promote NAME VERSION|rollback NAME",
        help="what to do (default: list)",
    )
    parser.add_argument("--force", metavar="REASON", help="promote without a verdict; the reason is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    action, *given = arguments.words or ["list"]
    if action not in ACTIONS or len(given) != ACTIONS[action]:
        told = " ".join(arguments.words)
        raise Stop(USAGE, f"models {told}: not understood", "holdfast models [list | promote NAME VERSION | rollback NAME]")
    if arguments.force and action != "promote":
        raise Stop(USAGE, "--force is for promote", "leave it out")
    file = registry_file(os.environ)
    if action == "promote":
        if not given[1].isdecimal():
            raise Stop(USAGE, f"{given[1]} is not a version: versions are whole numbers", "holdfast models lists them")
        registry = promote(file, given[0], int(given[1]), arguments.force)
    elif action == "rollback":
        registry = rollback(file, given[0])
    else:
        registry = read_registry(file)
    models = registry.listed()
    if not arguments.json:
        _show(models, file)
    return DONE, {"models": models, "file": str(file)}


def _show(models: list[Json], file: Path) -> None:
    if not models:
        say(f"{file} lists nothing yet: holdfast export and holdfast verify write it")
    for model in models:
        place = "  in place" if model["promoted"] else ""
        verdict = (model["verdict"] or "not verified").replace("_", " ")
        verdict += ", but worse on general rows" if model["general"] == "worse" else ""
        gone = "  (gone: nothing can serve it)" if model["run"] and not _there(model["run"]) else ""
        origin = f"on {model['base']}, run {model['run']}{gone}"
        say(f"{model['name']} {model['version']}  {verdict}{place}  adapter {model['adapter_sha256'][:16]} {origin}")
        for export in model["exports"]:
            gone = "" if _there(export["path"]) else "  (gone)"
            say(f"    {export['kind']:13} {export['path']}{gone}")


def _there(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # no name of a file, or where nobody may look
        return False
