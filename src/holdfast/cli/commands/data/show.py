"""`holdfast data show`: one row as it is trained on, token by token, those that are learned marked. Changes nothing."""

from __future__ import annotations

import argparse
import contextlib
import shlex
from dataclasses import replace
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.base.tasks import kind_of
from holdfast.base.units import counted
from holdfast.base_model.folder import folder_of
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.files.read import read_unparsed
from holdfast.data.judge.rules import NO_LIMIT, Rules, rules_of
from holdfast.data.judge.turns import BadRow
from holdfast.data.tokens.codec import Codec, load_codec
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.shown import ShownRow, show_row

EXAMPLE = "holdfast data show rows.jsonl --row 3 --model ../models/Qwen2.5-0.5B"
_SHOWN = 60  # characters of a token


def add_arguments(show: argparse.ArgumentParser) -> None:
    show.add_argument("file", type=Path, metavar="FILE", help="a file of rows")
    show.add_argument("--row", type=int, required=True, metavar="N", help="its line, as rejects and incidents name it (counted from 1)")
    show.add_argument("--model", metavar="DIR", help="the model whose tokenizer and chat template are used (default: tiny)")
    show.add_argument("--config", type=Path, metavar="CONFIG", help="take model, data and train.max_tokens as this config has them")
    show.add_argument("--json", action="store_true", help="print text, tokens, format and notes as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    rules, model = Rules(), arguments.model or "tiny"
    config: Config | None = None
    if arguments.config:
        config = load_config(arguments.config)
        if not (kind := kind_of(config)).text_rows:
            raise Stop(USAGE, f"{arguments.config} is of {kind.what} (task: {config.task}), whose rows are no texts", "leave --config out")
        rules = rules_of(config, config.train.max_tokens)
        model = arguments.model or config.model
    row = _row(arguments.file, arguments.row)
    codec = _codec(model, config)
    try:
        shown = _shown(row, rules, codec, any_objective=not arguments.config)
    except BadRow as bad:
        text = f"{arguments.file}:{arguments.row} cannot be trained on: {bad.reason}: {bad.detail}"
        raise Stop(BLOCKED, text, f"all rows: holdfast data check {shlex.quote(str(arguments.file))}") from None
    if not arguments.json:
        _tell(shown, f"{arguments.file}:{arguments.row}", rules)
    return DONE, shown.as_json()


def _shown(row: UnparsedRow, rules: Rules, codec: Codec, any_objective: bool) -> ShownRow:
    """Render a row. any_objective: one of preferences is shown as the objectives learn it that are for such rows. Raises BadRow."""
    try:
        return show_row(row, rules, codec)
    except BadRow as bad:
        if not any_objective or bad.reason != "preference_row":
            raise
        for wanted in ("pairs", "marks"):
            with contextlib.suppress(BadRow):
                shown = show_row(row, replace(rules, wanted=wanted, learns="last"), codec)
                shown.notes.append(bad.detail)
                return shown
        raise


def _row(file: Path, wanted: int) -> UnparsedRow:
    if wanted < 1:
        raise Stop(USAGE, f"--row {wanted}: rows are counted from 1", "give a line as rejects and incidents name it")
    count, last = 0, 0
    try:
        for row in read_unparsed(str(file)):
            if row.line == wanted:
                return row
            count, last = count + 1, row.line
            if row.line > wanted:
                raise Stop(BLOCKED, f"{file}:{wanted} holds no row", f"the next one is --row {row.line}")
    except OSError as error:
        raise at_place(error, file, "cannot be read", "correct the path", code=USAGE) from None
    raise Stop(BLOCKED, f"{file} has {counted(count, 'row')}, none at line {wanted}", f"the last one is --row {last}" if count else "")


def _codec(model: str, config: Config | None) -> Codec:
    """Return the tokenizer and the chat template that a run of this config has."""
    folder = folder_of(model)
    if not folder.is_dir():
        raise Stop(USAGE, f"--model {model}: no such folder", "give the folder of a model in Hugging Face layout")
    return codec_of(config, folder) if config else load_codec(folder)


def _tell(shown: ShownRow, place: str, rules: Rules) -> None:
    learned = sum(token["learned"] for token in shown.tokens)
    limit = "" if rules.max_tokens == NO_LIMIT else f" of at most {rules.max_tokens:,}"
    weight = "" if shown.weight is None else f", weight {shown.weight:g}"
    say(f"{place}  {shown.layout}, {counted(len(shown.tokens), 'token')}{limit}, {learned:,} of them learned (*){weight}")
    _list(shown.tokens)
    if shown.worse:
        say(f"rejected: {counted(len(shown.worse.tokens), 'token')}")
        _list(shown.worse.tokens)
    for note in shown.notes:
        say(f"note: {note}")


def _list(tokens: list[Json]) -> None:
    for token in tokens:
        text = token["text"] if len(token["text"]) <= _SHOWN else f"{token['text'][:_SHOWN]}..."
        share = f"  weight {token['weight']:g}" if "weight" in token else ""
        say(f"{token['id']:>8}  {'*' if token['learned'] else ' '}  {text!r}{share}")
