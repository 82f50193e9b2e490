"""The settings timeline: which settings hold from which step on. Two runs with equal plan and timeline end with equal bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.core.files import append_line, read_lines

Settings = dict[str, Any]


def settings_at(entries: list[dict[str, Any]], step: int) -> Settings:
    """The settings in force at `step` (1-based): every entry up to it, later ones over earlier ones."""
    merged: Settings = {}
    for entry in entries:
        if entry["from_step"] <= step:
            merged |= entry["settings"]
    return merged


def settings_of_process(entries: list[dict[str, Any]]) -> Settings:
    """What a process is built and started with: every entry, also one for a step that is still to come.

    A change of kernels or environment cannot wait for its step within a process that begins a step or two before it.
    """
    return settings_at(entries, max((entry["from_step"] for entry in entries), default=1))


_MEMORY = {"micro_batch_tokens", "checkpointed_layers"}


def unlearned(entries: list[dict[str, Any]], step: int) -> Settings:
    """Micro-batches and layers computed again as they were before `step` ran out of memory; nothing where it did not.

    For when a row was the reason: what was learned from it says nothing about the rest.
    """
    now = settings_at(entries, step)
    was = settings_at([entry for entry in entries if entry["from_step"] != step or set(entry["settings"]) - _MEMORY], step)
    return {name: was[name] for name in _MEMORY & set(was) if was[name] != now[name]}


def read_timeline(file: Path) -> list[dict[str, Any]]:
    return list(read_lines(file))


def add_entry(file: Path, from_step: int, settings: Settings, reason: str) -> dict[str, Any]:
    """Write one change down, before anything uses it; the entry."""
    entry = {"from_step": from_step, "settings": settings, "reason": reason}
    append_line(file, entry)
    return entry
