"""`holdfast data check`: look at every row and say which can be trained on, which cannot, and why. Changes nothing."""

from __future__ import annotations

import argparse
import shlex
import time

from holdfast.base.errors import BLOCKED, DONE
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.cli.commands.data.passes import add_shared_arguments, answer_of, codec_of, crew_of, rules_of, tell
from holdfast.cli.row_check import add_kinds, checked_by_kind
from holdfast.data.files.paths import expand
from holdfast.data.survey.clean import check_files
from holdfast.data.survey.findings import Findings
from holdfast.data.survey.survey import check_block

EXAMPLE = "holdfast data check rows.jsonl --tokenizer ../models/Qwen2.5-0.5B --max-tokens 1024 --html rows.html"


def add_arguments(check: argparse.ArgumentParser) -> None:
    add_shared_arguments(check)
    add_kinds(check)
    check.add_argument("--second-look", metavar="MODEL", help="note rows whose loss under this model is far from that of the others")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if own := checked_by_kind(arguments):
        return own[0].check(arguments, own[1])
    files, held_out = expand(arguments.paths), expand(arguments.held_out, "judging")
    if arguments.second_look:
        from holdfast.cli.commands.data.second_look import look_again, refuse_second_look

        refuse_second_look(arguments.second_look)
    codec = codec_of(arguments)
    findings = Findings()
    began = time.perf_counter()
    with crew_of(arguments, codec, check_block) as crew:
        check_files(files, held_out, crew, findings)
    answer = answer_of(arguments, findings, files, time.perf_counter() - began)
    if arguments.second_look:
        look, examples = look_again(arguments.second_look, files, rules_of(arguments))
        answer["second_look"] = {"model": arguments.second_look} | look.as_json()
        answer |= {"notes": answer["notes"] | look.counts, "examples": answer["examples"] | examples}
    tell(arguments, answer)
    paths = shlex.join(arguments.paths)
    if arguments.objective == "sft" and answer["by_reason"].get("preference_row") and not arguments.json:
        say(f"next, for rows of preferences: holdfast data check {paths} --objective dpo (marked answers: kto)")
    elif answer["kept"] and not arguments.json:
        fields = "".join(f" --field {shlex.quote(field)}" for field in arguments.field)
        say(f"next: holdfast init --model {shlex.quote(str(arguments.tokenizer or 'MODEL'))} --data {paths}{fields}")
    unweighted = arguments.row_weight and not answer["weights"]["rows"]
    return BLOCKED if answer["rejected"] or answer["empty_files"] or unweighted else DONE, answer
