"""`holdfast export RUN --to KIND --out PATH`: write a run's result for other programs, proven equal to base + adapter."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import teller
from holdfast.export.card import served_with
from holdfast.export.export import ExportRequest, export
from holdfast.export.gguf.export import export_gguf
from holdfast.export.gguf.kinds import llama_cpp, quantiser, read_kinds
from holdfast.export.gguf.make import Tools
from holdfast.export.push import open_hub, push
from holdfast.export.registry import record_export, registry_file, remember
from holdfast.export.subject import read_subject
from holdfast.report.pages import write_page
from holdfast.report.shipped.exported import page, show
from holdfast.supervision.launch import measuring_environment

EXAMPLE = "holdfast export runs/first --to merged --out runs/first-merged"
KINDS = ("adapter", "merged", "gguf", "gguf-adapter")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", type=Path, metavar="RUN|ADAPTER", help="a finished run, one of its checkpoints, or a PEFT folder")
    parser.add_argument("--to", choices=KINDS, required=True, help="what to make of it")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH", help="where to put it; must not exist yet")
    parser.add_argument("--base", metavar="DIR", help="where the base model is, if not where the run says")
    parser.add_argument("--quantise", metavar="TYPE[,TYPE]", help="types of a GGUF, e.g. q8_0,q4_k_m (default: f16)")
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="a checkout of llama.cpp, whose converters are used (or LLAMA_CPP)")
    parser.add_argument(
        "--push", metavar="OWNER/NAME", help="also put it on the hub; a repository that does not exist yet is created private"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of the comparison, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    in_gguf = arguments.to.startswith("gguf")
    if arguments.quantise and arguments.to != "gguf":
        raise Stop(USAGE, f"--quantise is for --to gguf, not for --to {arguments.to}", "leave it out")
    kinds = read_kinds(arguments.quantise)
    checkout = llama_cpp(arguments.llama_cpp) if in_gguf else None
    tools = Tools(checkout, quantiser(kinds, checkout) if in_gguf else None)
    hub = open_hub(arguments.push) if arguments.push else None
    subject = read_subject(arguments.subject, arguments.base)

    tell = teller(arguments.json)
    order = ExportRequest(subject, arguments.to, arguments.out.expanduser().absolute(), measuring_environment(subject.run), tell)
    try:
        answer = export_gguf(order, kinds, tools) if in_gguf else export(order)
    except Stop as stop:
        if arguments.html and stop.answer and stop.answer.get("reasons"):
            write_page(arguments.html, page(stop.answer, subject.name, subject.told))
        raise
    remember(lambda: record_export(registry_file(os.environ), subject.name, subject.hashes(), answer), tell)
    if arguments.html:
        write_page(arguments.html, page(answer, subject.name, subject.told), answer)
    if not arguments.json:
        options = served_with(subject, arguments.out) if arguments.to == "adapter" else ""
        show(answer, arguments.to, arguments.out, subject.base_name, options)
    if arguments.push:
        tell(f"pushing it to {arguments.push}")
        answer["pushed"] = push(hub, arguments.push, answer)
        tell(f"pushed: {answer['pushed']['url']}, commit {answer['pushed']['commit']}")
        if base := answer["pushed"].get("base"):
            tell(f"its adapter_config.json names the base model {base} there: the path of this machine is in {arguments.out} alone")
    return BLOCKED if answer.get("refused") else DONE, answer
