"""Take committed steps back: put their rows, checkpoints and snapshots aside, so that the run goes on from before them. Decides nothing.

What is to be done is on disk before anything is done, and each part may be done again, so one that was interrupted is taken up.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from holdfast.base.files import Json, append_line, read_json, read_lines, write_bytes, write_json
from holdfast.base.locks import hold
from holdfast.config.settings import PartialSettings
from holdfast.machine import clock
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import BEST, checkpoint_name, checkpoint_steps, hold_until
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.timeline import LENGTHENED, Entry, add_entry, read_timeline

_FILE = "rollback.json"


def roll_back(run: RunFolder, places: Sequence[Path], to: int, settings: PartialSettings, quarantined: list[Json], reason: str) -> Json:
    """Let the run stand at step `to` again, `settings` in force from the step after it; return what was done. Only while no trainer lives.

    Rows of later steps leave steps.jsonl and evaluations.jsonl for RUN/rollbacks/NNN, with the checkpoints of those steps. Raises OSError.
    """
    made = run.rollbacks.iterdir() if run.rollbacks.is_dir() else ()  # one may be empty: the disk was full, or we were killed
    folder = run.made(run.rollbacks / f"{max((int(one.name) for one in made if one.name.isdigit()), default=0) + 1:03d}")
    facts = {"from": run.committed(), "to": to, "settings": settings, "quarantined": quarantined, "reason": reason, "done": None}
    write_json(folder / _FILE, facts)
    return _carry_out(run, places, folder, facts)


def take_up(run: RunFolder, places: Sequence[Path]) -> Json | None:
    """Carry a rollback that was begun through to its end; None where there is none."""
    begun = [(folder, facts) for folder, facts in rollbacks(run) if facts["done"] is None]
    return _carry_out(run, places, *begun[-1]) if begun else None


def rollbacks(run: RunFolder) -> list[tuple[Path, Json]]:
    """Return the rollbacks of a run, oldest first: folder, and {from, to, settings, quarantined, reason, done}."""
    folders = sorted(run.rollbacks.iterdir()) if run.rollbacks.is_dir() else []
    return [(folder, facts) for folder in folders if (facts := read_json(folder / _FILE))]


def _carry_out(run: RunFolder, places: Sequence[Path], folder: Path, facts: Json) -> Json:
    to = facts["to"]
    with hold(run.trainer_lock, wait=True), hold(run.writer_lock, wait=True):
        _write_settings(run, facts)
        for place in places:
            memory = MemoryFile.open(place)
            if memory is not None:
                with memory:
                    memory.forget_after(to)
        _put_checkpoints_aside(run, folder, to)
        for journal in (run.evaluations_file, run.steps_file):  # the steps last: until then the run stands where it stood
            _cut(journal, folder / journal.name, to)
        hold_until(run, None)
        if not _is_told(run, facts):
            run.event("rolled_back", step=facts["from"], to=to, settings=facts["settings"], reason=facts["reason"])
    done = facts | {"done": round(clock.now(), 3)}
    write_json(folder / _FILE, done)
    return done


def _is_told(run: RunFolder, facts: Json) -> bool:
    """Return whether the event of a rollback stands there from before it was interrupted: no trainer has begun since."""
    told = {"step": facts["from"]} | {name: facts[name] for name in ("to", "settings", "reason")}
    newest = [event for event in run.events() if event["event"] in ("rolled_back", "restored")][-1:]
    return any(event["event"] == "rolled_back" and told == {name: event.get(name) for name in told} for event in newest)


def _write_settings(run: RunFolder, facts: Json) -> None:
    entry = Entry(facts["to"] + 1, facts["settings"], facts["reason"])
    if facts["settings"] and entry not in read_timeline(run.timeline_file):
        add_entry(run.timeline_file, entry)
    if (length := _length_without_goal(read_timeline(run.timeline_file), facts["to"])) is not None:
        add_entry(run.timeline_file, length)
    known = list(read_lines(run.quarantine_file))
    for row in facts["quarantined"]:
        if row not in known:
            append_line(run.quarantine_file, row, durable=True)


def _length_without_goal(timeline: Sequence[Entry], to: int) -> Entry | None:
    """Return the length that the run had before it reached a goal in a step after `to`; None where that is the one in force."""
    lengths = [entry for entry in timeline if "steps" in entry.settings]
    kept = [one for one in lengths if not (one.settings["steps"] == one.from_step - 1 > to and one.reason.startswith("train.until."))]
    if not kept or kept[-1] is lengths[-1]:
        return None
    return Entry(to + 1, {name: value for name, value in kept[-1].settings.items() if name in LENGTHENED}, kept[-1].reason)


def _put_checkpoints_aside(run: RunFolder, folder: Path, to: int) -> None:
    later = [step for step in checkpoint_steps(run) if step > to]
    (folder / "checkpoints").mkdir(exist_ok=True)
    for step in later:
        (run.checkpoints / checkpoint_name(step)).rename(folder / "checkpoints" / checkpoint_name(step))
    best = read_json(run.checkpoints / BEST)
    if best is not None and best["step"] > to:
        (run.checkpoints / BEST).unlink()


def _cut(journal: Path, aside: Path, to: int) -> None:
    """Move the rows of steps after `to` out of a journal into the file `aside`; other rows stay as they are."""
    rows = list(read_lines(journal))
    gone = [row for row in rows if row["step"] > to]
    if gone:
        write_bytes(aside, b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in gone))
        kept = (row for row in rows if row["step"] <= to)
        write_bytes(journal, b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in kept))
