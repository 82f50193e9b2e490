"""What is done for a run on tables before its first start: read, judge and part the rows, plan."""

from __future__ import annotations

import importlib.util
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, replacing, write_json
from holdfast.base.units import counted, listed
from holdfast.base.versions import install
from holdfast.config.config import Config
from holdfast.config.table import columns_of
from holdfast.report.audience import Audience
from holdfast.run.folder import RunFolder
from holdfast.run.plan import RowCounts, RunPlan
from holdfast.run.sampling.step_table import run_length
from holdfast.run.types import Finding
from holdfast.supervision.preparation.needs import refuse_no_held_out
from holdfast.supervision.preparation.throwaway import where_rejects_are
from holdfast.supervision.preparation.types import Foreseen, NewRun, Preparation
from holdfast.tables.plan import plan_table

_SHOWN = 8
_NAMES = 20


def _check(run: RunFolder, config: Config, audience: Audience, grouped: bool = True) -> Any:
    """Return the built table, whose arrays lie in the run folder. Raises Stop(1) where nothing can be learned."""
    if importlib.util.find_spec("polars") is None:
        raise Stop(BLOCKED, "a task on tables needs polars", install("tabular"))
    from holdfast.tables.table.build import build_table

    rejects: BinaryIO
    with replacing(run.rejects_file) as rejects:
        built = build_table(config, run.path / ".table.tmp", run.data_file, lambda row: _write(rejects, row), grouped)
    write_json(run.data_report_file, _report(built, config))
    _tell(built, run, config, audience)
    return built


def plan_columns(run: RunFolder, config: Config, asked: Future[Json], audience: Audience) -> NewRun:
    """Plan a new run, whose arrays then lie in its folder. Raises Stop(1)."""
    machine = asked.result()
    built = _check(run, config, audience)
    parts, form = built.parts, built.form
    refuse_no_held_out(config, parts["held_out"])
    train = config.train
    steps, samples = run_length(parts["train"], train.effective_batch, train.epochs, train.steps)
    outputs = len(form.target.classes) or (len(columns_of(config).quantiles) if columns_of(config).loss == "quantile" else 1)
    plan = plan_table(config, machine, form.width, tuple(len(one.values) for one in form.categories), outputs)
    rows = RowCounts(train=parts["train"], held_out=parts["held_out"], per_epoch=parts["train"])
    planned = RunPlan(**dict(plan), steps=steps, samples=samples, rows=rows, data_sha256=built.digest)
    return NewRun(config, config, machine, planned)


def foresee(config: Config, machine: Json) -> Foreseen:
    """Return what can be said before preparing: whether the columns are there, and a plan as if no name had more than 20 values."""
    if importlib.util.find_spec("polars") is None:
        return Foreseen(None, [Finding("packages", "block", "a task on tables needs polars", install("tabular"))], config)
    from holdfast.tables.table.schema import open_all, schema_of

    try:
        schema = schema_of(open_all((*config.data.files, *config.data.held_out_files))[0], columns_of(config))
    except (Stop, OSError) as error:
        hint = error.hint if isinstance(error, Stop) else "correct data.files in the config"
        return Foreseen(None, [Finding("data-files", "block", error.message if isinstance(error, Stop) else str(error), hint)], config)
    plan = plan_table(config, machine, len(schema.numbers), (_NAMES,) * len(schema.categories), 1)
    text = f"{len(schema.numbers):,} columns of numbers and {len(schema.categories):,} of names; target {schema.target} ({schema.kind})"
    return Foreseen(plan, [Finding("plan", "info", f"{text}; {plan.reasons[0]}", "holdfast train reads all rows before it begins")], config)


def _write(handle: BinaryIO, row: Json) -> None:
    handle.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def _report(built: Any, config: Config) -> Json:
    """Return the content of data.json: the law of rows, the form, what the checks found."""
    return {
        "rows": built.read,
        "kept": built.read - built.rejected,
        "mended": 0,
        "rejected": built.rejected,
        "by_reason": dict(built.by_reason),
        "parts": built.parts,
        "findings": [asdict(finding) for finding in built.findings],
        "form": built.form.model_dump(mode="json"),
        "files": [Path(name).name for name in (*config.data.files, *config.data.held_out_files)],
    }


def _tell(built: Any, run: RunFolder, config: Config, audience: Audience) -> None:
    form, parts = built.form, built.parts
    line = f"data: {counted(built.read, 'row')} = {built.read - built.rejected:,} kept + {built.rejected:,} rejected"
    if built.by_reason:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in built.by_reason.most_common())
        line += f" ({reasons}); rejects with reasons: {where_rejects_are(run, config)}"
    audience.say(line)
    what = f"{counted(len(form.numbers), 'column')} of numbers" + (f" and {len(form.categories):,} of names" if form.categories else "")
    target = form.target
    learned = f"{target.name} within {target.horizon:,} rows" if target.horizon else target.name
    kind = f"one of {len(target.classes)} classes" if target.classes else "a number"
    audience.say(f"columns: {what}; learned: {learned}, {kind}")
    by = {"row": "row", "group": f"group ({columns_of(config).group})", "time": f"time ({columns_of(config).time})", "file": "file"}[
        form.parted_by
    ]
    told = f"parted by {by}: {parts['train']:,} rows to train on, {parts['held_out']:,} held out"
    told += f", {form.purged:,} left out between them" if form.purged else ""
    beside = parts["unused"] - form.purged
    audience.say(told + (f", {beside:,} not used" if beside > 0 else ""))
    if missing := [one for one in form.numbers if one.missing]:
        how = {"indicator": "the mean, and a column that says so", "mean": "the mean"}.get(columns_of(config).missing, "")
        named = listed([f"{one.name} ({one.missing:,})" for one in missing], _SHOWN)
        audience.say(f"missing numbers become {how} (table.missing): {named}")
    for finding in built.findings:
        (audience.tell if finding.severity == "warn" else audience.say)(f"{finding.message}  -> {finding.fix}")


def _check_again(run: RunFolder, config: Config, audience: Audience) -> str:
    digest = str(_check(run, config, audience).digest)
    if digest == run.plan().data_sha256 or columns_of(config).parted_by != "group":
        return digest
    return str(_check(run, config, audience, grouped=False).digest)  # of a run that is older than the groups in its file


PREPARATION = Preparation(plan_columns, _check_again, foresee, lambda _, held_out: held_out)
