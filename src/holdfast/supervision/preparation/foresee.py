"""What can be said of a run on texts before anything is prepared: its model, its rows, its memory. Leaves nothing but cached tokens."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

from holdfast.base.errors import Stop
from holdfast.base.files import Json, read_json
from holdfast.base_model.folder import EMBEDDED, ModelFacts, read_model
from holdfast.base_model.types import causal_types, loads_as
from holdfast.config.config import Config
from holdfast.data.files.raw_row import OTHER_SPLIT, RawRow, Reject
from holdfast.data.files.read import read_rows
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.row_weight import weight_of
from holdfast.data.judge.rules import WANTED, rules_of
from holdfast.data.judge.turns import BadRow
from holdfast.data.judge.unused import UnusedFields
from holdfast.data.tokens.given_template import codec_of
from holdfast.data.tokens.tokenizer_file import tokenizer_code
from holdfast.planning.memory.frozen_form import as_it_comes
from holdfast.planning.memory.trained_size import adapted
from holdfast.planning.plan import quick_plan
from holdfast.planning.tracing import tracer
from holdfast.planning.workload import longest_row
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Plan
from holdfast.run.types import Finding
from holdfast.supervision.preparation.rows import check_data, divide
from holdfast.supervision.preparation.throwaway import check_command
from holdfast.supervision.preparation.types import Foreseen

_LOOKED_AT = 20  # rows of each file
_ALL_ROWS = 16 << 20  # bytes of files that are read whole: seconds
_HELD_OUT = "holdfast data split ROWS --into train.jsonl=0.9 --into held-out.jsonl=0.1; then data.files: train.jsonl, "
_HELD_OUT += "data.held_out_files: held-out.jsonl"
_TYPES = "https://huggingface.co/docs/transformers/model_doc/auto"
_REMOTE = "https://github.com/jgi-genomeocean/genomeocean/pull/8"


def foresee(config: Config, machine: Json) -> Foreseen:
    """Look at what the config names, and plan the run for the longest rows it allows."""
    findings = [*_rows(config)]
    try:
        model = read_model(config.model)
        codec_of(config, model.folder)
        config = as_it_comes(config, model)
    except Stop as stop:
        return Foreseen(None, [Finding("model-folder", "block", stop.message, stop.hint), *findings], config)
    limit = longest_row(config, model)
    lengths = {"max": limit, "mean": limit / 2, "rows": 0, "step": limit * config.train.effective_batch}
    plan = quick_plan(config, model, machine, lengths)
    if not any(found.severity == "block" for found in findings):
        findings = _joined(findings, [*_as_trained(config, model)])
    return Foreseen(plan, [_told(plan, config, model, limit), *_code(model), *_as_loaded(config, model), *findings], config)


class _Heard:
    """An audience that keeps what a person is warned of, and shows nothing."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def say(self, text: str) -> None:
        """Leave out what is no warning."""

    def tell(self, text: str) -> None:
        """Keep a warning."""
        self.warnings.append(text)

    def counting(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Count nothing."""
        return nullcontext(lambda new: None)


def _as_trained(config: Config, model: ModelFacts) -> Iterator[Finding]:
    """Yield what `train` refuses or warns of when it has checked all rows, by its own check; of large files, that nothing is known."""
    files = [*config.data.files, *config.data.held_out_files]
    command = check_command(config)
    if sum(Path(name).stat().st_size for name in files) > _ALL_ROWS:
        text = f"the first {_LOOKED_AT} rows of each file were looked at; train checks all, and whether held-out rows stand in training"
        yield Finding("rows", "info", text, command)
        return
    heard = _Heard()
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-", ignore_cleanup_errors=True) as place:
        run = RunFolder(Path(place).resolve())
        try:
            divide(run, config, check_data(run, config, model, heard)[0])
        except Stop as stop:
            yield Finding("rows", "block", stop.message.replace("\n  ", "; "), command if place in stop.hint else stop.hint)
    for told in heard.warnings:
        yield Finding("rows", "warn", told, _HELD_OUT if "held-out rows" in told else command)


def _joined(looked: list[Finding], whole: list[Finding]) -> list[Finding]:
    """Return what a look at the first rows and the check of all found, each thing once."""
    blocked = [found for found in whole if found.severity == "block"]
    if blocked:
        return blocked
    known = any(found.id == "data-fields" for found in looked)
    return [*looked, *(found for found in whole if not (known and found.message.startswith("not used, though")))]


def _code(model: ModelFacts) -> Iterator[Finding]:
    """Yield what there is to say of transformers' code for the model; code in the model's folder is never run here, only told of."""
    if tokenizer := tokenizer_code(read_json(model.folder / "tokenizer_config.json") or {}):
        text = (
            f"{model.folder} brings a tokenizer of its own code ({tokenizer}), which holdfast does not run: tokenizer.json cuts the rows. "
        )
        text += "With trust_remote_code=True that code runs, and whether it gives the same ids is not known"
        yield Finding("tokenizer-code", "info", text, "leave trust_remote_code out where you use the tokenizer", _REMOTE, "reported")
    named = model.config.get("auto_map")
    own = named.get("AutoModelForCausalLM") if isinstance(named, dict) else None
    known, kind = causal_types(), model.config.get("model_type")
    brings = f"{model.folder} brings code of its own ({own}), which holdfast does not run"
    listed = loads_as(model.config) is not None
    if known is None or (listed and not own):
        return
    if listed:
        text = f"{brings}: transformers' own {kind} computes it. In programs with trust_remote_code=True the folder's code does; "
        text += "some that was written for transformers 4 runs under 5 without an error and is wrong"
        yield Finding("model-code", "info", text, "leave trust_remote_code out where you use the model", _REMOTE, "reported")
    elif own:
        text = f"{brings}, and the installed transformers has no language model of type {kind!r}"
        yield Finding("model-code", "block", text, "pip install --upgrade transformers may bring one; else give another model", _REMOTE)
    else:
        text = f"{model.folder} holds a model of type {kind!r}, of which the installed transformers has no language model"
        fix = "give a causal language model; for a new one: pip install --upgrade transformers"
        yield Finding("model-type", "block", text, fix, _TYPES)


def _as_loaded(config: Config, model: ModelFacts) -> Iterator[Finding]:
    """Yield what the installed transformers makes of the model otherwise than its config.json says, which `train` refuses."""
    if config.model in EMBEDDED or loads_as(model.config) is None:
        return
    try:
        with tracer() as asked:
            told = asked.unlike(config, model)
    except Stop:
        return  # whether it can be made is a matter of other findings, and of the plan
    if told:
        yield Finding("model-as-loaded", "block", *told, _TYPES)


def _rows(config: Config) -> Iterator[Finding]:
    """Yield a finding for each file of rows that cannot be read, or whose first rows are none to train on."""
    for name in [*config.data.files, *config.data.held_out_files]:
        fix = f"see each row and its reason: {check_command(config, [name])}"
        try:
            if not os.access(name, os.R_OK):
                why = "there is no such file" if not Path(name).exists() else "this user may not read it"
                yield Finding("data-files", "block", f"{name} cannot be read: {why}", "correct data.files in the config")
                continue
            first = list(islice((row for row in read_rows(name) if not _left_out(row)), _LOOKED_AT))
        except (OSError, Stop) as error:
            yield Finding("data-files", "block", f"{name} cannot be read: {getattr(error, 'strerror', None) or error}", fix)
            continue
        bad = [wrong for row in first if (wrong := _wrong(row, config))]
        if telling := _telling(first, config):
            text = f"{name}: not used, though it may change what a row means: {', '.join(telling)}"
            yield Finding(
                "data-fields",
                "warn",
                text,
                "data.row_weight: FIELD lets rows count by a number; jq leaves rows out; else every row is learned alike",
            )
        if not first:
            alone = config.data.files == [name]
            yield Finding("data-files", "block" if alone else "warn", f"{name} holds no row", fix)
        elif bad:
            text = f"{len(bad)} of the first {len(first)} rows of {name} cannot be trained on: {bad[0]}"
            hopeless = len(bad) == len(first) and (len(first) == _LOOKED_AT or len(config.data.files) == 1)
            yield Finding("data-files", "block" if hopeless else "warn", text, fix)


def _telling(rows: list[RawRow | Reject], config: Config) -> list[str]:
    """Return the fields of these rows that nothing is learned from and that look as if they changed what a row means."""
    good = [row.value for row in rows if isinstance(row, RawRow) and not _wrong(row, config)]
    data, rules = config.data, rules_of(config, config.train.max_tokens)
    unused = UnusedFields()
    unused.add([(value, parse_example(value, data.format, data.fields, rules.wanted)) for value in good], data.fields, rules.beside)
    return list(unused.telling)


def _left_out(row: RawRow | Reject) -> bool:
    """Return whether a row is of a split that is not trained, which says nothing of the rows that are."""
    return isinstance(row, Reject) and row.reason == OTHER_SPLIT


def _wrong(row: RawRow | Reject, config: Config) -> str:
    """Return why this is no row to train on, as far as its form tells; empty where it may be one."""
    if isinstance(row, Reject):
        return row.detail
    try:
        data = config.data
        parse_example(row.value, data.format, data.fields, WANTED.get(config.train.objective, "answers"))
        if data.row_weight:
            weight_of(row.value, data.row_weight)
    except BadRow as bad:
        return str(bad)
    return ""


def _told(plan: Plan, config: Config, model: ModelFacts, limit: int) -> Finding:
    adapter, named = config.adapter, sorted({name.rpartition(".")[2] for name in model.linear()})
    able = f"it has {', '.join(named)}; or write all-linear"
    if not plan.params.trainable:
        return Finding("plan", "block", "adapter.targets names no module of this model", able)
    listed = adapter.targets if isinstance(adapter.targets, list) and "targets" in adapter.kind.keys else []
    if missing := [name for name in listed if not adapted(model, [name])]:
        near = [f"{name}: did you mean {close[0]}?" for name in missing if (close := difflib.get_close_matches(name, named, 1))]
        text = f"adapter.targets names {', '.join(missing)}, and this model has no such layer"
        return Finding("plan", "block", text, "; ".join([*near, able]))
    peak = plan.peak_bytes / 2**30
    room = "an unknown amount" if plan.capacity_bytes is None else f"{plan.capacity_bytes / 2**30:.2f} GiB"
    text = f"with rows of {limit:,} tokens, the longest allowed, the run needs about {peak:.2f} GiB of {room}"
    text += f": {plan.params.trainable:,} of {plan.params.total:,} parameters learn, {plan.micro_batch_tokens:,} tokens at once"
    return Finding("plan", "info", f"{text} ({model.folder})", "holdfast train measures it with your rows before it begins")
