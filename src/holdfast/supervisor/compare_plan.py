"""What a run took beside what it was planned to take: said at its end, kept per machine and shape of run, told by later plans."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path

import orjson

from holdfast.core.cache import cache_folder
from holdfast.core.config.config import Config
from holdfast.core.facts.machine_file import training_devices
from holdfast.core.files import Json, append_line, read_json, read_lines
from holdfast.core.run.folder import RunFolder
from holdfast.core.run.plan import Plan, read_plan
from holdfast.ui.plan_view import gib
from holdfast.ui.terminal import Terminal

_FILE = "planned-memory.jsonl"
_ON_A_CARD = ("weights", "adapter", "gradients", "optimizer", "activations", "logits")  # what torch's allocator counts there


def compare(run: RunFolder, config: Config, summary: Json, terminal: Terminal) -> None:
    """Say how far the run's peak was from its plan, and keep that; nothing where one of the two is unknown."""
    plan, measured = read_plan(run.plan_file), summary.get("peak_bytes")
    if plan is None or not measured or not config.model:
        return
    machine = read_json(run.machine_file) or {}
    on_card = bool(training_devices(machine))
    planned = sum(getattr(plan.bytes, kind) for kind in _ON_A_CARD) if on_card else plan.peak_bytes
    run.event("memory_compared", planned_bytes=planned, measured_bytes=measured)
    terminal.say(f"memory: {gib(measured)} at the most, {gib(planned)} planned ({planned / measured - 1:+.0%})")
    folder = cache_folder(os.environ)
    if folder:
        with contextlib.suppress(OSError):  # no home, or a full one: the run itself has the event
            folder.mkdir(parents=True, exist_ok=True)
            about = {"machine": _machine(machine), "shape": _shape(config, plan), "time": round(time.time())}
            append_line(folder / _FILE, about | {"planned": planned, "measured": measured})


def seen_before(config: Config, machine: Json, plan: Plan) -> str | None:
    """What runs of this shape took on this machine, in a sentence; None where there was none."""
    folder = cache_folder(os.environ)
    here, shape = _machine(machine), _shape(config, plan)
    rows = [row for row in _kept(folder / _FILE) if row.get("machine") == here and row.get("shape") == shape] if folder else []
    measured = [row["measured"] for row in rows if isinstance(row.get("measured"), int)]
    if not measured:
        return None
    runs = "a run of this shape took" if len(measured) == 1 else f"{len(measured)} runs of this shape took at the most"
    return f"{runs} {gib(max(measured))} on this machine"


def _kept(file: Path) -> list[Json]:
    try:
        return list(read_lines(file))
    except OSError:
        return []


def _machine(machine: Json) -> str:
    parts = [training_devices(machine), machine.get("memory_bytes"), (machine.get("torch") or {}).get("version")]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _shape(config: Config, plan: Plan) -> str:
    adapter = config.adapter.model_dump(mode="json", exclude={"start", "alpha"})
    parts = [plan.params.total, plan.precision, plan.micro_batch_tokens, plan.checkpointed_layers, config.train.max_tokens, adapter]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
