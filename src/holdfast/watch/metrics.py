"""The runs in Prometheus' text format. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.base.files import Json
from holdfast.machine.readings.card import NUMBERS

STATES = ("running", "finished", "gave_up", "interrupted", "dead")
_GAUGES: dict[str, tuple[str, Callable[[Json], Any]]] = {
    "step": ("the last committed step", lambda row: row["step"]),
    "steps": ("steps the run is to have", lambda row: row["steps"]),
    "attempts": ("processes that were started for the run", lambda row: row["attempts"]),
    "loss": ("loss of the last committed step", lambda row: row["loss"]),
    "held_out_loss": ("loss of the last evaluation on held-out rows", lambda row: row["held_out_loss"]),
    "incidents": ("attempts that ended early against the user's will", lambda row: row["incidents_seen"]),
    "signs": (
        "signs that hold now: a card that is slowed down, a run that nothing would restart",
        lambda row: len(row["signs"]),
    ),
    "ills": ("how much is wrong with a finished run", lambda row: len(row["ills"])),
    "grad_norm": ("norm of its gradient", lambda row: row["grad_norm"]),
    "learning_rate": ("its learning rate", lambda row: row["lr"]),
    "tokens_per_second": ("tokens a second in the last committed step", lambda row: row["tokens_per_second"]),
    "peak_bytes": ("most memory in use up to the last committed step, since its process began", lambda row: row["peak_bytes"]),
    "last_step_timestamp_seconds": ("when the last step was committed", lambda row: row["last_step_time"]),
    "left_seconds": ("likely time to the end", lambda row: (row["seconds_left"] or {}).get("likely")),
}


def metrics(rows: Mapping[str, Json], readings: Json | None = None) -> str:
    """Format the numbers of each run, and readings of the machine, as Prometheus text; an unknown number has no line."""
    lines = ["# HELP holdfast_run_state 1 for the state a run is in", "# TYPE holdfast_run_state gauge"]
    lines += [
        f'holdfast_run_state{{run="{_escaped(name)}",state="{state}"}} {int(row["state"] == state)}'
        for name, row in rows.items()
        for state in STATES
    ]
    for gauge, (what, value_of) in _GAUGES.items():
        lines += [f"# HELP holdfast_run_{gauge} {what}", f"# TYPE holdfast_run_{gauge} gauge"]
        for name, row in rows.items():
            value = value_of(row)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                lines.append(f'holdfast_run_{gauge}{{run="{_escaped(name)}"}} {value!r}')
    return "\n".join([*lines, *_machine(readings or {})]) + "\n"


def _machine(readings: Json) -> list[str]:
    lines = []
    cards = readings.get("gpus", [])
    for name in ("processors_busy", "memory_used_bytes", "memory_bytes", "swap_used_bytes"):
        if readings.get(name) is not None:
            lines += [f"# TYPE holdfast_machine_{name} gauge", f"holdfast_machine_{name} {readings[name]!r}"]
    for name in NUMBERS:
        told = [
            f'holdfast_gpu_{name}{{gpu="{number}",name="{_escaped(card["name"])}"}} {card[name]!r}'
            for number, card in enumerate(cards)
            if card.get(name) is not None
        ]
        lines += [f"# TYPE holdfast_gpu_{name} gauge", *told] if told else []
    return lines


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
