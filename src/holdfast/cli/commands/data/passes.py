"""What `data check` and `data clean` share: options, crew, answer and words. No verb of its own."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.versions import install
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.files.form import form_of
from holdfast.data.judge.rules import NO_LIMIT, WANTED, Rules, asked_fields, learns_of
from holdfast.data.survey.findings import Findings
from holdfast.data.tokens.codec import Codec, load_codec, plain_codec
from holdfast.data.workers.workers import Copies, Crew, Make, Workers
from holdfast.machine.system import usable_threads

REPEATED = ("duplicate", "near_duplicate", "conflicting_answer", "in_held_out")


def add_shared_arguments(check: argparse.ArgumentParser) -> None:
    """Add the arguments that `data clean` takes, too."""
    check.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, or patterns in quotes")
    check.add_argument("--tokenizer", "--model", type=Path, metavar="DIR", help="folder of the model or its tokenizer (default: tiny's)")
    check.add_argument("--max-tokens", type=int, metavar="N", help="longest row in tokens (default: no limit)")
    check.add_argument("--too-long", choices=("cut", "reject", "split"), default="cut", help="what happens to longer rows (default: cut)")
    layouts = ("auto", "alpaca", "prompt-completion", "chat", "question-answer", "text")
    check.add_argument("--format", default="auto", choices=layouts, help="layout of a row (default: auto, by the fields of each row)")
    check.add_argument("--objective", default="sft", choices=("sft", *WANTED), help="what the rows are to be learned with (default: sft)")
    check.add_argument("--field", action="append", default=[], metavar="NAME=THEIRS", help="what the files call a field, e.g. output=reply")
    check.add_argument("--row-weight", metavar="FIELD", help="the field that says how much a row counts, as data.row_weight does")
    check.add_argument("--redact", action="store_true", help="take secrets and e-mail addresses out of the texts (rows become repaired)")
    check.add_argument("--languages", action="store_true", help="detect the language of each row (about as slow as counting its tokens)")
    check.add_argument("--held-out", action="append", default=[], metavar="PATH", help="rows that must not be among these")
    check.add_argument("--workers", type=int, metavar="N", help="processes (default: all cores); the result does not depend on it")
    check.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="let a Ray cluster do the work: HOST:PORT, or auto on a node of it; the result does not depend on it",
    )
    check.add_argument("--json", action="store_true", help="print the findings as JSON")
    check.add_argument("--html", type=Path, metavar="FILE", help="also write them as one page")


def rules_of(arguments: argparse.Namespace) -> Rules:
    """Return the rules of the command line. Raises Stop(2) for what is no rule."""
    names = asked_fields(arguments.field)
    if arguments.max_tokens is not None and arguments.max_tokens < 2:
        raise Stop(USAGE, f"--max-tokens {arguments.max_tokens}: at least 2 are needed", "for example: --max-tokens 512")
    if arguments.languages and importlib.util.find_spec("py3langid") is None:
        raise Stop(USAGE, "--languages needs the package py3langid", install("languages"))
    limit = NO_LIMIT if arguments.max_tokens is None else arguments.max_tokens
    wanted = WANTED.get(arguments.objective, "answers")
    if wanted != "answers" and arguments.too_long == "split":
        raise Stop(USAGE, f"--too-long split is for --objective sft; {arguments.objective} looks at whole answers", "take cut or reject")
    learns, weight = learns_of(wanted), arguments.row_weight or ""
    return Rules(arguments.format, limit, names, arguments.too_long, arguments.redact, arguments.languages, wanted, learns, weight)


def codec_of(arguments: argparse.Namespace) -> Codec:
    """Return the tokenizer asked for with its chat template, else the embedded one's, which then only counts the tokens of the texts."""
    if arguments.tokenizer is None:
        return plain_codec(load_codec(EMBEDDED["tiny"]))
    if embedded := EMBEDDED.get(str(arguments.tokenizer)):
        return load_codec(embedded)
    folder = arguments.tokenizer.parent if arguments.tokenizer.is_file() else arguments.tokenizer
    if not folder.is_dir():
        raise Stop(USAGE, f"--tokenizer {folder}: no such folder", "give the folder of a model in Hugging Face layout")
    return load_codec(folder)


def workers_of(arguments: argparse.Namespace) -> int:
    """Return the number of processes. Raises Stop(2) below 1."""
    if arguments.workers is not None and arguments.workers < 1:
        raise Stop(USAGE, f"--workers {arguments.workers}: at least 1 is needed", "leave it out for all cores")
    return arguments.workers or usable_threads()


def crew_of(arguments: argparse.Namespace, codec: Codec, make: Make) -> AbstractContextManager[Crew[Any]]:
    """Return the crew that does the work: processes of this machine, or the cluster asked for. Raises Stop(2) without Ray."""
    rules, count = rules_of(arguments), workers_of(arguments)
    if arguments.ray is None:
        alone = sys.platform == "linux" and threading.active_count() == 1
        return (Copies if alone else Workers)(codec, rules, count, make)
    if arguments.workers is not None:
        raise Stop(USAGE, "--workers counts processes of this machine, --ray uses the CPUs of a cluster", "give one of the two")
    try:
        from holdfast.data.workers.cluster import Cluster
    except ModuleNotFoundError as missing:
        raise Stop(USAGE, f"--ray needs Ray, which is not installed (no module {missing.name})", install("ray")) from None
    return Cluster(arguments.ray, codec, rules, make)


def answer_of(arguments: argparse.Namespace, findings: Findings, files: list[str], seconds: float) -> Json:
    """Return everything found, as --json gives it."""
    size = sum(Path(file).stat().st_size for file in files)
    found = findings.as_json()
    name = str(arguments.tokenizer or "tiny's tokenizer in the plain instruction form; give your model's with --tokenizer")
    speed = {"rows_per_s": found["rows"] / seconds, "mb_per_s": size / 1e6 / seconds, "tokens_per_s": found["tokens"]["total"] / seconds}
    return found | {
        "seconds": round(seconds, 3),
        "speed": {what: round(value, 1) for what, value in speed.items()},
        "many_answers": findings.many_answers.look(files, [name for kind in found["unused_fields"].values() for name in kind]),
        "empty_files": [file for file in files if file not in findings.layouts],
        "files": [{"file": file, "form": form_of(file).words, "bytes": Path(file).stat().st_size} for file in files],
        "row_weight": arguments.row_weight,
        "tokenizer": name,
        "max_tokens": arguments.max_tokens,
    }


def tell(arguments: argparse.Namespace, answer: Json) -> None:
    """Print the table and write the page, as far as they are wanted."""
    if arguments.html:
        from holdfast.report.data.page import render
        from holdfast.report.pages import write_page

        write_page(arguments.html, render(answer), answer)
    if not arguments.json:
        from holdfast.report.data.lines import show

        show(answer)
