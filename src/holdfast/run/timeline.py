"""The settings timeline: which settings hold from which step on. Two runs with equal plan and timeline end with equal bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import ValidationError

from holdfast.base.errors import BLOCKED, DamagedFile, Stop
from holdfast.base.files import append_line, read_lines
from holdfast.config.settings import MEMORY_SETTINGS, PartialSettings, Settings, problems

LENGTHENED = frozenset({"steps", "samples", "patience_from"})  # settings that the entry of an extension has together


@dataclass(frozen=True)
class Entry:
    """One change of settings, in force from a step (1-based) on."""

    from_step: int
    settings: PartialSettings
    reason: str = ""


def settings_at(entries: Iterable[Entry], step: int) -> Settings:
    """Return the settings in force at `step` (1-based): every entry up to it, later ones over earlier ones.

    Raises DamagedFile where there are none, ValueError where one is wrong.
    """
    merged: PartialSettings = {}
    for entry in entries:
        if entry.from_step <= step:
            merged |= entry.settings
    if not merged:
        hint = "restore that file; holdfast status and diagnose read what is left"
        raise DamagedFile(BLOCKED, f"the run's timeline.jsonl is damaged: no settings for step {step} stand in it", hint)
    return Settings.model_validate(merged)


def newest_settings(entries: Sequence[Entry]) -> Settings:
    """Return the settings from the step of the newest entry on."""
    return settings_at(entries, entries[-1].from_step if entries else 1)


def settings_of_process(entries: Sequence[Entry]) -> Settings:
    """Return what a process is built and started with: every entry, also one for a step that is still to come.

    A change of kernels or environment cannot wait for its step within a process that begins a step or two before it.
    """
    return settings_at(entries, max((entry.from_step for entry in entries), default=1))


def settings_in(file: Path) -> Settings:
    """Return `settings_of_process` of a file that may be somebody else's. Raises Stop(1) where a setting has a value that is none."""
    try:
        return settings_of_process(read_timeline(file))
    except ValidationError as error:
        told = "; ".join(told for _, told in problems(error))
        raise Stop(BLOCKED, f"{file}: {told}", "give another folder with --run DIR, or the file as it was") from None


def unlearned(entries: Sequence[Entry], step: int) -> PartialSettings:
    """Return micro-batches and recomputed layers from before `step` ran out of memory; nothing where it did not.

    For when a row was the reason: what was learned from it says nothing about the rest.
    """
    now = settings_at(entries, step)
    kept = (entry for entry in entries if entry.from_step != step or set(entry.settings) - set(MEMORY_SETTINGS))
    was = settings_at(kept, step)
    return {name: getattr(was, name) for name in MEMORY_SETTINGS if getattr(was, name) != getattr(now, name)}


def read_timeline(file: Path) -> list[Entry]:
    return [Entry(line["from_step"], line["settings"], line.get("reason", "")) for line in read_lines(file)]


def add_entry(file: Path, entry: Entry) -> Entry:
    """Write one change down, durably and before anything uses it; return the entry."""
    append_line(file, asdict(entry), durable=True)
    return entry
