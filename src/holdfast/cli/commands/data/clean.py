"""`holdfast data clean`: write the rows that can be trained on into one file, and the others with their reasons into another.

A row nothing is wrong with comes out byte for byte as it stood; a repaired one with its changes, and as it was in FILE.mended.jsonl.
The result is there whole or not at all; rerun the same command to resume an interrupted one.
"""

from __future__ import annotations

import argparse
import difflib
import time
from functools import partial
from pathlib import Path

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.cli.commands.data import passes as data_pass
from holdfast.cli.row_check import add_kinds, checked_by_kind
from holdfast.data.duplicates.write import cannot_write, refuse_outputs
from holdfast.data.files.paths import expand
from holdfast.data.survey.clean import clean_files
from holdfast.data.survey.findings import Findings
from holdfast.data.survey.survey import clean_block, survey_of
from holdfast.data.tokens.cache import cache_key

_KINDS = tuple(kind.replace("_", "-") for kind in data_pass.REPEATED)
EXAMPLE = "holdfast data clean rows.jsonl --out clean.jsonl --rejects rejects.jsonl --tokenizer ../models/Qwen2.5-0.5B --max-tokens 1024"


def add_arguments(clean: argparse.ArgumentParser) -> None:
    data_pass.add_shared_arguments(clean)
    add_kinds(clean)
    clean.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where the clean rows go: JSON Lines; of a table CSV or Parquet, too"
    )
    clean.add_argument(
        "--rejects", type=Path, metavar="FILE", help="where the others go, each with its reason and bytes (default: OUT.rejects.jsonl)"
    )
    clean.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="KIND[,KIND]",
        help=f"reject what repeats an earlier row, too: {', '.join(_KINDS)}",
    )


def _kinds(given: list[str]) -> list[str]:
    """Parse kinds of repetition, also a list with commas, and with _ for -. Raises Stop(2) for what is none."""
    kinds = [kind.strip().replace("_", "-") for one in given for kind in one.split(",") if kind.strip()]
    for kind in kinds:
        if kind not in _KINDS:
            near = difflib.get_close_matches(kind, _KINDS, 1)
            raise Stop(
                USAGE,
                f"--drop {kind}: no kind of repetition is called so",
                f"{f'did you mean {near[0]}? ' if near else ''}{', '.join(_KINDS)} are",
            )
    return kinds


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    arguments.rejects = arguments.rejects or arguments.out.with_name(f"{arguments.out.name}.rejects.jsonl")
    arguments.drop = _kinds(arguments.drop)
    if own := checked_by_kind(arguments):
        return own[0].clean(arguments, own[1])
    files, held_out = expand(arguments.paths), expand(arguments.held_out, "judging")
    mended = arguments.out.with_name(f"{arguments.out.name}.mended.jsonl")
    refuse_outputs([arguments.out, arguments.rejects, mended], [*files, *held_out])
    codec, rules = data_pass.codec_of(arguments), data_pass.rules_of(arguments)
    findings = Findings(frozenset(kind.replace("-", "_") for kind in arguments.drop), partial(survey_of, rules=rules, codec=codec))
    began = time.perf_counter()
    try:
        with data_pass.crew_of(arguments, codec, clean_block) as crew:
            for path in (arguments.out, arguments.rejects):
                path.parent.mkdir(parents=True, exist_ok=True)
            places = (arguments.out, arguments.rejects, mended)
            reused = clean_files(files, held_out, crew, findings, *places, cache_key(codec, rules))
    except OSError as error:
        raise cannot_write(error, arguments.out) from None
    answer = data_pass.answer_of(arguments, findings, files, time.perf_counter() - began)
    written = {"out": str(arguments.out), "rejects": str(arguments.rejects), "originals_of_mended": str(mended), "blocks_reused": reused}
    data_pass.tell(arguments, answer | written)
    return DONE, answer | written
