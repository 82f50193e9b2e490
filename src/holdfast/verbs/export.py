"""`holdfast export RUN --to KIND --out PATH`: write a run's result for other programs, proven equal to base + adapter."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from holdfast.core.errors import DONE
from holdfast.core.files import Json
from holdfast.core.inert import say
from holdfast.ship.export import Order, export
from holdfast.ship.subject import read_subject
from holdfast.supervisor.launch import measuring_environment

EXAMPLE = "holdfast export runs/first --to merged --out runs/first-merged"
KINDS = ("adapter", "merged")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", type=Path, metavar="RUN|ADAPTER", help="a finished run, one of its checkpoints, or a PEFT folder")
    parser.add_argument("--to", choices=KINDS, required=True, help="what to make of it")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="where to put it; must not exist yet")
    parser.add_argument("--base", metavar="DIR", help="where the base model is, if not where the run says")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    subject = read_subject(arguments.subject, arguments.base)

    def tell(text: str) -> None:
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    order = Order(subject, arguments.to, arguments.out.expanduser().absolute(), measuring_environment(subject.run), tell)
    answer = export(order)
    if not arguments.json:
        _show(answer)
    return DONE, answer


def _show(answer: Json) -> None:
    checked = answer["checked"]
    yes = {True: "yes", False: "no"}
    say(
        f"{'loaded by':15}{checked['engine']}\n"
        f"{'NMSE':15}{checked['nmse']:.2e} of logits at {checked['positions']} positions ({checked['budget']['nmse']:.0e} allowed)\n"
        f"{'KL per token':15}{checked['kl_per_token']:.2e} nats ({checked['budget']['kl_per_token']:.0e} allowed)\n"
        f"{'likeliest token':15}the same at {checked['top1_agreement']:.1%} of positions\n"
        f"{'greedy answers':15}equal: {yes[checked['greedy_equal']]}, of {checked['prompts']} prompts\n"
        f"{'token ids':15}of rendered conversations as in training: {yes[checked['token_ids_equal']]}\n"
        f"{'stops':15}where training ended its answers: {yes[checked['stops']]}"
    )
    for file in answer["files"]:
        say(f"{file['bytes']:>15,} bytes  {file['sha256'][:16]}  {file['path']}")
