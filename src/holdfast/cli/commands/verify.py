"""`holdfast verify RUN`: is the tuned model better than the base, on rows it has not seen, and what did it forget?"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import teller
from holdfast.export.registry import name_of, record_verdict, registry_file, remember
from holdfast.export.subject import Subject, read_subject
from holdfast.report.pages import write_page
from holdfast.report.shipped.verdict import page, show, summary
from holdfast.supervision.launch import measuring_environment
from holdfast.verify.compare import Request, verify
from holdfast.verify.expectations import read_prompts
from holdfast.verify.suite import read_suite

EXAMPLE = "holdfast verify runs/first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", type=Path, metavar="RUN|ADAPTER", help="a finished run, one of its checkpoints, or a PEFT folder")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows to measure on, in place of those the run held out")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="prompts with what is expected of their answers")
    parser.add_argument(
        "--against", default="base", metavar="RUN|ADAPTER|base", help="what to compare with: the base (default), or another adapter of it"
    )
    parser.add_argument("--suite", metavar="NAME[,NAME]", help="lm-eval tasks to run on both models as well")
    parser.add_argument("--suite-path", type=Path, metavar="DIR", help="a folder of lm-eval tasks of your own")
    parser.add_argument("--suite-limit", type=int, metavar="N", help="questions of each task (default: all)")
    parser.add_argument("--suite-chat", action="store_true", help="ask them through the model's chat template")
    parser.add_argument("--generate", type=int, default=100, metavar="N", help="rows that both models answer as well (default 100)")
    parser.add_argument("--longest", type=int, default=128, metavar="TOKENS", help="of an answer (default 128)")
    parser.add_argument("--base", metavar="DIR", help="where the base model is, if not where the run says")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if arguments.generate < 0 or arguments.longest < 1:
        raise Stop(USAGE, "--generate counts from 0, --longest from 1", "leave them out for 100 answers of at most 128 tokens")
    prompts = read_prompts(arguments.prompts) if arguments.prompts else []
    suite = read_suite(arguments.suite, arguments.suite_path, arguments.suite_limit, arguments.suite_chat)
    subject = read_subject(arguments.subject, arguments.base)
    against = None if arguments.against == "base" else _other(Path(arguments.against), subject, arguments.base)

    tell = teller(arguments.json)
    environment = measuring_environment(subject.run)
    answer = verify(Request(subject, against, arguments.rows, prompts, arguments.generate, arguments.longest, environment, tell, suite))
    answer |= summary(answer, subject.state)
    other = name_of(against.hashes()) if against else None
    said, general = answer["verdict"], answer["forgotten"]["verdict"]
    remember(lambda: record_verdict(registry_file(os.environ), subject.name, subject.hashes(), other, said, general), tell)
    if arguments.html:
        write_page(arguments.html, page(answer, subject.state), answer)
    if not arguments.json:
        show(answer, subject.state, arguments.subject)
    return BLOCKED if answer["verdict"] == "worse" else DONE, answer


def _other(path: Path, subject: Subject, base: str | None) -> Subject:
    """Open the adapter to compare with. Raises Stop(2) where it is on another base: losses of other tokens cannot be compared."""
    other = read_subject(path, base)
    if other.hashes()["base_sha256"] != subject.hashes()["base_sha256"]:
        text = f"{other.name} is on {other.base_name}, {subject.name} on {subject.base_name}"
        raise Stop(USAGE, f"{text}: their losses are of other tokens", "compare each with its own base")
    return replace(other, name=told_beside(other, subject))


def told_beside(other: Subject, subject: Subject) -> str:
    """Return what the adapter that is compared with is called: a name that is not the subject's."""
    return other.state if other.state != subject.state else str(other.tuned)
