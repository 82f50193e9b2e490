"""What runs took on this machine beside what they were planned to take: said at their end, kept, and used by later plans."""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
from pydantic import Field, ValidationError

from holdfast.base.cache import cache_folder
from holdfast.base.errors import Stop
from holdfast.base.files import Json, append_line, read_json, read_sound_lines
from holdfast.base.units import gib, span
from holdfast.base_model.folder import read_description
from holdfast.config.config import Config
from holdfast.machine.machine_file import training_devices
from holdfast.planning.duration import FORWARD, Ahead, PastRun, duration, idle_parameters, work_of
from holdfast.planning.plan import with_more
from holdfast.planning.ranks import ranks_of
from holdfast.run.attempt import read_launch_spec
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Plan, RunPlan, read_plan

_FILE = "past-runs.jsonl"
_LAST = 500  # of its rows are looked at
_ON_A_CARD = ("weights", "adapter", "gradients", "optimizer", "activations", "logits", "workspace")  # what torch's allocator counts there

# Of train, with what is usual, what bytes and pace follow from beside the shape that runs always had.
_USUAL = (("ranks", 1), ("fsdp", False), ("attention", "sdpa"), ("packing", True), ("parts_at_once", "auto"), ("threads", None))

_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "bfloat16"}  # of the rate that stands for it: both halves multiply at one


class _Row(PastRun, frozen=True, extra="ignore"):
    """A run that ended: of which machine and shape, its bytes as planned and measured, and what its seconds went into."""

    machine: str
    shape: str
    planned: int = Field(gt=0)
    measured: int = Field(gt=0)


def remember(run: RunFolder, config: Config, summary: Json, say: Callable[[str], None]) -> None:
    """Say how far the run was from its plan, and keep what it took; nothing where the plan or the measurement is unknown."""
    plan, measured = read_plan(run.plan_file), summary.get("peak_bytes")
    if plan is None or not measured or not config.model:
        return
    machine = read_json(run.machine_file) or {}
    planned = _planned(machine, plan)
    run.event("memory_compared", planned_bytes=planned, measured_bytes=measured)
    orders = read_launch_spec(run.attempt(max(run.attempts(), default=0)))
    each = f" in the first of {orders.ranks} processes" if orders and orders.ranks > 1 else ""
    say(f"memory: {gib(measured)} at its peak{each}, {gib(planned)} planned ({planned / measured - 1:+.0%})")
    if plan.seconds and summary.get("wall_seconds") and summary.get("steps") == plan.steps:  # else it was extended, or ended early
        expected = f"{span(plan.seconds.low)} to {span(plan.seconds.high)}"
        say(f"wall time: {span(summary['wall_seconds'])}, {expected} expected")
    folder, took = cache_folder(os.environ), _took(run, config, plan, summary)
    if folder and took:
        about = {"machine": _machine(machine), "shape": _shape(config, plan), "time": round(time.time())}
        cards = orders.ranks if orders and training_devices(machine) else 1
        found = {"planned": planned, "measured": measured, "precision": plan.precision, "work": work_in(config, plan), "cards": cards}
        with contextlib.suppress(OSError):  # no home, or a full one: the run itself has the event
            folder.mkdir(parents=True, exist_ok=True)
            append_line(folder / _FILE, about | found | took)


def _took(run: RunFolder, config: Config, plan: RunPlan, summary: Json) -> Json | None:
    """Return where the run's seconds went; None where it has no pace of its own."""
    rows = [row for row in run.steps() if row["tokens"] and row["seconds"]]
    wall = summary.get("wall_seconds")
    if len(rows) < 10 or not wall:
        return None
    tokens, seconds = sum(row["tokens"] for row in rows), sum(row["seconds"] for row in rows)
    tenths = statistics.quantiles([row["tokens"] / row["seconds"] for row in rows], n=10)
    rate = tokens / seconds
    between = _in_attempts(rows)
    recovering = sum(one["seconds_to_recover"] or 0 for one in summary["incidents"])
    end = next((event["seconds"] for event in run.events() if event["event"] == "final_evaluation_ended"), 0.0)
    created = next((event["seconds"] for event in run.events() if event["event"] == "run_created"), 0.0)
    starts = [event["time"] for event in run.events() if event["event"] == "attempt_started" and event["time"] <= rows[0]["time"]]
    # of the process that did the first step alone: what others lost before it is no loading
    begin = rows[0]["time"] - rows[0]["seconds"] - starts[-1] + created if starts else None
    # several may be recovered from at once, and a night until somebody started it again is no part of the wall time
    lost = min(recovering, max(0.0, wall - between - end - (begin or 0.0)))
    begin = wall - lost - between - end if begin is None else begin
    evaluated = read_evaluations(run)
    on_the_way = sum(row["seconds"] for row in evaluated if row["step"] < rows[-1]["step"])
    samples = sum(len(row.get("samples") or ()) for row in rows)
    mean = tokens / samples if samples else 0.0  # of a row
    asked = min(config.evaluate.rows or plan.rows.held_out, plan.rows.held_out) * mean * len(evaluated)
    check = sum(row["seconds"] for row in evaluated) * rate / asked if asked else FORWARD
    return {
        "rate": [rate, min(rate, tenths[0]), max(rate, tenths[-1])],
        "begin": max(0.0, begin),
        "end": max(0.0, end - check * 2 * plan.rows.held_out * mean / rate),
        "beside": max(0.0, between / (seconds + on_the_way) - 1),
        "wall": wall,
        "lost": lost,
        "check": check,
    }


def _in_attempts(rows: Sequence[Json]) -> float:
    """Sum the seconds from each attempt's first step to its last: between two of them lies a failure, or a week until it was extended."""
    firsts, lasts = ({row.get("attempt"): row for row in some} for some in (reversed(rows), rows))
    return float(sum(lasts[number]["time"] - first["time"] + first["seconds"] for number, first in firsts.items()))


def correct_from_history(config: Config, machine: Json, plan: Plan) -> Plan:
    """Return the plan with what past runs of its shape took on this machine beyond it: told, and counted as the process's own.

    Settings stay as they were chosen: they follow from config and capacity alone, so that a run can be made again.
    """
    shape = _shape(config, plan)
    measured = [row.measured for row in _kept(machine) if row.shape == shape]
    if not measured:
        return plan
    planned, found = _planned(machine, plan), max(measured)
    runs = "a run of this shape took" if len(measured) == 1 else f"{len(measured)} runs of this shape took up to"
    told = f"{runs} {gib(found)} on this machine"
    if (more := found - planned) > 0:
        told += f", {gib(more)} more than this plan would have said; that is counted"
        plan = with_more(plan, config.train, "context", more)
    return plan.model_copy(update={"reasons": (*plan.reasons, told)})


def work_in(config: Config, plan: Plan) -> float:
    """Return the operations a token takes in a run, by its plan and its model's config.json; of all experts where that cannot be read."""
    try:
        text = read_description(config.model).text if plan.weights_by_part.get("experts") else {}
    except (OSError, Stop):
        text = {}
    return work_of(plan.params, idle_parameters(text, plan.weights_by_part))


def with_duration(config: Config, machine: Json, plan: Plan, tokens: float, checked: float, text: Json | None = None) -> Plan:
    """Return the plan with its wall time, and what that rests on. tokens, checked: as in Ahead; text: as in `idle_parameters`."""
    cards = ranks_of(config.train, machine) if training_devices(machine) else 1  # ranks on a CPU share its cores
    idle = idle_parameters(text or {}, plan.weights_by_part)
    work = work_of(plan.params, idle)
    ahead = Ahead(tokens, checked, work, plan.precision, cards, work_of(plan.params) - work)
    shape = _shape(config, plan)
    runs = [row.model_copy(update={"alike": row.shape == shape}) for row in _kept(machine)]
    probed = _probed(machine, plan.precision)
    if config.train.offload == "layers" and training_devices(machine):  # the bus's speed, which products tell nothing of
        runs, probed = [one for one in runs if one.alike], None
    seconds, basis = duration(ahead, runs, probed)
    told = f"wall time {basis}" if seconds else basis
    return plan.model_copy(update={"seconds": seconds, "reasons": (*plan.reasons, told)})


def _probed(machine: Json, precision: str) -> float | None:
    """Return the operations a second of matrix products, where the machine file holds the doctor's speed probe."""
    probe = (machine.get("probes") or {}).get("speed")
    rates = probe.get("flops_per_second") if isinstance(probe, dict) else None
    rate = rates.get(_NAMES.get(precision)) if isinstance(rates, dict) else None
    return float(rate) if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0 else None


def _planned(machine: Json, plan: Plan) -> int:
    """Return the bytes of the plan that a run's own peak counts."""
    return sum(getattr(plan.bytes, kind) for kind in _ON_A_CARD) if training_devices(machine) else plan.peak_bytes


def _kept(machine: Json) -> list[_Row]:
    """Read the runs that ended on this machine, the oldest first; malformed rows are left out."""
    folder, here, found = cache_folder(os.environ), _machine(machine), []
    for row in _lines(folder / _FILE)[-_LAST:] if folder else []:
        with contextlib.suppress(ValidationError):
            found.append(_Row.model_validate(row))
    return [row for row in found if row.machine == here]


def _lines(file: Path) -> list[Json]:
    try:
        return list(read_sound_lines(file))
    except OSError:
        return []


def _machine(machine: Json) -> str:
    parts = [training_devices(machine), machine.get("memory_bytes"), (machine.get("torch") or {}).get("version")]
    if not parts[0] and (cpu := machine.get("cpu")):  # a cache folder may be several machines', and a container have fewer cores
        parts += [cpu.get("name"), cpu.get("threads")]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _shape(config: Config, plan: Plan) -> str:
    adapter = config.adapter.model_dump(mode="json", exclude={"start", "alpha"})
    train = [config.train.max_tokens, config.train.frozen, config.train.double_quant, config.train.optimizer, config.train.objective]
    chosen = (config.train.weights, config.train.offload, config.task)
    held = [one for one in chosen if one not in ("fp32", "off", "text")]  # as runs before there was a choice
    held += [f"{name} {value}" for name, usual in _USUAL if (value := getattr(config.train, name)) != usual]
    if config.train.micro_batch_tokens is not None:  # else it follows from how many rows a step has
        held.append(f"effective_batch {config.train.effective_batch}")
    parts = [plan.params.total, plan.precision, plan.micro_batch_tokens, plan.checkpointed_layers, adapter, *train, *held]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
