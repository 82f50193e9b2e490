"""What is known of a run, read from its folder for a comparison: config, settings, rows, machine, losses, what changed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json, read_json, read_lines
from holdfast.config.config import Config
from holdfast.data.token_set.overlap import keys_of
from holdfast.data.token_set.token_set import load_tokens, split
from holdfast.run.folder import RunFolder, flat
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.run.types import OWN_DROPOUT

ENDS = 20  # last steps that are held against each other
_MACHINE = ("python", "memory_bytes", "torch", "gpus", "cuda", "rocm", "packages")

_Keys: TypeAlias = npt.NDArray[np.int64]


def facts_of(run: RunFolder) -> Json:
    """Return what is known of a run: config, settings, data, machine, speed, memory, losses, incidents. None is unknown.

    row_keys: a hash of each row's tokens, in their order, int64 [rows]; held_keys: of the held-out rows. order: samples of the last steps.
    rates: the learning rate by step. left_out: rows in quarantine. was: versions of libraries that it was trained with in an earlier part.
    """
    config = run.config()
    plan, machine, summary = run.plan(), read_json(run.machine_file) or {}, read_json(run.summary_file) or {}
    rows = [row for row in run.steps() if row.get("loss") is not None]
    seconds, tokens = sum(row["seconds"] for row in rows), sum(row["tokens"] for row in rows)
    settings = settings_of_process(read_timeline(run.timeline_file)).as_json()
    keys, left_out = _row_keys(run, config), list(read_lines(run.quarantine_file))
    beside = {"steps", "samples", "quarantine", "memory_limit_bytes", "env", "behind", "patience_from"}
    beside |= {"all_learn", "exact_start", "rope_apart"}  # marks of runs that begin now
    if not any(OWN_DROPOUT in str(event.get("what")) for event in run.events() if event["event"] == "setting_changed"):
        beside.add("own_dropout")  # as all_learn, a mark of runs that begin now; for most models it changes nothing
    return {
        "config": flat(config.model_dump(mode="json", exclude={"run": True, "faults": True, "data": {"files", "held_out_files"}})),
        "settings": {name: value for name, value in settings.items() if name not in beside} | {"env": flat(settings.get("env") or {})},
        "data": {"sha256": plan.data_sha256, "rows": plan.rows.train, "held_out": plan.rows.held_out},
        "row_keys": keys[0],
        "held_keys": keys[1],
        "model": plan.base.files if plan.base else None,
        "machine": {name: machine.get(name) for name in _MACHINE},
        "steps": rows[-1]["step"] if rows else 0,
        "losses": [row["loss"] for row in rows],
        "loss_steps": [row["step"] for row in rows],
        "rates": {row["step"]: row["lr"] for row in rows if "lr" in row},
        "order": [row.get("samples") for row in rows[-ENDS:]],
        "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
        "peak_bytes": max((row["peak_bytes"] for row in rows), default=None),
        "loss": {"first": rows[0]["loss"] if rows else None, "last": rows[-1]["loss"] if rows else None}
        | {name: (summary.get("loss") or {}).get(name) for name in ("eval_base", "eval_tuned")},
        "incidents": [f"step {one['step']}: {one['cause']}, {one['remedy']}" for one in summary.get("incidents") or ()],
        "quarantined": len(left_out),
        "left_out": sorted(f"{Path(str(row['file'])).name}:{row['line']}" for row in left_out),
        "was": _earlier_libraries(run),
        "status": summary.get("status"),
        "artifact_sha256": summary.get("artifact_sha256"),
    }


def _earlier_libraries(run: RunFolder) -> Json:
    """Return by "name up to step N" the versions of libraries that a run was trained with before it went on with others."""
    changed = [event for event in run.events() if event["event"] == "libraries_changed" and isinstance(event.get("before"), dict)]
    return {f"{name} up to step {event['step']}": version for event in changed for name, version in event["before"].items()}


def _row_keys(run: RunFolder, config: Config) -> tuple[_Keys | None, _Keys | None]:
    """Return a hash of each row's tokens, and of the held-out rows' alone; None where the rows are gone or are not of texts."""
    try:
        tokens = load_tokens(run.data_file)
        keys = keys_of(tokens.ids, tokens.learned, tokens.starts).whole
        return keys, keys[split(tokens, config.data, config.train.seed)[1]]
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def read_run(run: RunFolder) -> Json:
    """Read `facts_of` a folder that holds a run. Raises Stop."""
    run.existing()
    run.refuse_foreign()
    if not run.plan_file.exists():
        raise Stop(USAGE, f"{run.path} has no plan yet", "let the run begin first")
    return facts_of(run)
