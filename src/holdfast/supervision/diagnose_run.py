"""What is wrong with a run, or has ended its attempts, by its folder. Reads only."""

from __future__ import annotations

import math
import os
import select
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from holdfast.base.errors import USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, read_json
from holdfast.book.kinds.failure import Failure
from holdfast.data.files.stream import open_stream, read_head
from holdfast.diagnosis.collectives.dumps import read_dumps
from holdfast.diagnosis.collectives.guilty import with_dumps
from holdfast.diagnosis.diagnose import diagnose, diagnose_failure
from holdfast.diagnosis.health_signs import FIRST_WORD_AT, ills
from holdfast.diagnosis.logs.doubts import Doubt, doubted, doubts, lowest, told
from holdfast.diagnosis.logs.file import read_log
from holdfast.diagnosis.logs.text import Evidence, Line
from holdfast.run.attempt import closed, is_closed
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder
from holdfast.run.types import Clue, Diagnosis
from holdfast.supervision.standing import RunStanding, look

WRITER_S = 30  # how long a pipe may give nothing; a slow program may stand behind it


def read_lines_of(log: str) -> tuple[Line, ...]:
    if log == "-":
        return read_log(sys.stdin.buffer)
    try:
        with open(log, "rb", opener=_without_waiting) as stream:
            if not Path(log).is_file():
                return _read_once(log, stream)
            return read_log(open_stream(stream, read_head(log))[0])
    except OSError as error:
        hint = "give a log file, a run folder, or - for standard input"
        raise at_place(error, log, "", hint, code=USAGE) from None


def _without_waiting(path: str, flags: int) -> int:
    """Open a pipe although nobody writes into it."""
    return os.open(path, flags | os.O_NONBLOCK)


def _read_once(log: str, stream: BinaryIO) -> tuple[Line, ...]:
    """Read what a pipe or a terminal gives. Raises Stop(2) where nobody writes, and for a device, whose bytes may have no end."""
    kind = os.fstat(stream.fileno()).st_mode
    if stat.S_ISFIFO(kind) and not select.select([stream], [], [], WRITER_S)[0]:
        raise Stop(
            USAGE,
            f"{log} is a pipe into which nobody has written for {WRITER_S} s",
            "give a log file, a run folder, or - for standard input",
        )
    if stat.S_ISCHR(kind) and not stream.isatty() and stream.read(1):
        raise Stop(USAGE, f"{log} is a device, no log", "give a log file, a run folder, or - for standard input")
    os.set_blocking(stream.fileno(), True)
    return read_log(stream)


def diagnose_run(folder: RunFolder, cards: dict[str, Failure], ended: bool = False) -> tuple[Diagnosis, list[Json]]:
    """Return what is wrong with a run now, and what ended each of its attempts. ended: its supervisor asks, which still lives."""
    attempts: list[tuple[Json, Diagnosis]] = []
    for number in folder.attempts():
        end = closed(folder.attempt(number))
        failure_report = end.failure_report if end else None
        log = folder.attempt(number) / "output.log"
        lines = read_lines_of(str(log)) if log.is_file() else ()
        if failure_report is None or failure_report.ending.kind in ("finished", "interrupted"):
            continue
        found = with_dumps(diagnose_failure(failure_report, cards, lines), read_dumps(folder.attempt(number)))
        attempts.append(({"attempt": number, "ending": failure_report.ending.words()}, found))
    each = [about | {"cause": found.cause, "confidence": found.confidence, "clues": list(found.words())} for about, found in attempts]
    now = look(folder)
    if now.unread and now.state != "running":
        return _not_known(f"nothing can be said of the run's end now: {'; '.join(now.unread)}"), each
    if now.state == "finished":
        return _finished(now.summary, folder), each
    if now.state == "interrupted" or (now.state == "running" and not ended):
        return _unfinished(now), each
    newest = now.attempt
    if newest is None or is_closed(newest.folder):
        return (attempts[-1][1] if attempts else _unfinished(now)), each
    log = newest.folder / "output.log"
    found = diagnose(Evidence(read_lines_of(str(log)) if log.is_file() else (), _ended_with(newest.folder)), cards)
    return (_unfinished(now, found) if found.cause in ("healthy", "unknown") else found), each


def _finished(summary: Json, folder: RunFolder) -> Diagnosis:
    """Judge a finished run: healthy where its loss is known, and nothing was odd about its end or its held-out losses."""
    if wrong := ills(summary):
        return Diagnosis.plain(wrong[0]["cause"], 0.8, *(one["says"] for one in wrong))
    steps, loss = summary.get("steps"), summary.get("loss") or {}
    first, last = loss.get("first"), loss.get("last")
    ended = "the run is finished" + (f", {steps:,} steps" if steps else "")
    if doubt := summary.get("doubt"):
        return _not_known(f"{ended}, but {doubt}")
    if last is None or not math.isfinite(last):
        return _not_known(f"{ended}; nothing is known of its loss, so nobody can say whether it learned")
    course = f"{ended}, loss {first:.4g} -> {last:.4g}"
    if against := _doubts(summary, folder):
        return doubted(against)
    judged = "health" in summary and (steps or 0) >= FIRST_WORD_AT
    if not judged and last > first:
        return _not_known(f"{course}: higher than it began, and there is too little to say why")
    at_end = "and nothing was odd about its last steps" if judged else "and no failure was seen"
    return replace(Diagnosis.plain("healthy", 0.95, course), explanation=f"T{course[1:]}, {at_end}.")


def _doubts(summary: Json, folder: RunFolder) -> list[Doubt]:
    """Return what speaks against a finished run: its own evaluations, or what another program printed in any of its attempts."""
    if folder.command_file.exists():
        return doubts(_printed(folder))
    rows = [row for row in read_evaluations(folder) if row["loss"] is not None]
    losses = [row["loss"] for row in rows]
    at = lowest(losses)
    if at is None:
        return _of_the_result(summary.get("loss") or {})
    step, steps = rows[at]["step"], [row for row in folder.steps() if row["loss"] is not None]
    before, after = ([row["loss"] for row in steps if (row["step"] <= step) is earlier] for earlier in (True, False))
    kept = summary.get("artifact_step") == step
    where = f"step {step:,}: " + ("what this run leaves is that state" if kept else "evaluate.keep_best leaves that state")
    return [told(losses, at, before, after, "the held-out loss", where)]


def _of_the_result(loss: Json) -> list[Doubt]:
    """Return what speaks against a result whose held-out rows were measured at the end alone."""
    base, tuned = loss.get("eval_base"), loss.get("eval_tuned")
    if base is None or tuned is None or tuned < base:
        return []
    seen = f"the held-out loss is not lower than before the training: {base:.4f} -> {tuned:.4f}"
    return [Doubt(None, seen, "What is in the way of learning: holdfast check CONFIG --only overfit.")]


def _printed(folder: RunFolder) -> list[Line]:
    """Return the lines of all attempts as one log, numbered through, with a line between them where another begins."""
    lines: list[Line] = []
    for number in folder.attempts():
        log = folder.attempt(number) / "output.log"
        begins = [Line(None, f"attempt {number}: continuing from its checkpoint")] if lines else []
        lines += [*begins, *(read_lines_of(str(log)) if log.is_file() else ())]
    return [replace(line, number=at) for at, line in enumerate(lines, 1)]


def _not_known(words: str) -> Diagnosis:
    return replace(Diagnosis.plain("unknown", 0.0, words), explanation=f"{words[0].upper()}{words[1:]}.")


def _unfinished(now: RunStanding, found: Diagnosis | None = None) -> Diagnosis:
    """Return the diagnosis of a run that is not at its end, which is never that it is well."""
    at = f"step {now.step:,} of {'?' if now.steps is None else f'{now.steps:,}'}"
    words = {
        "running": f"the run is {now.doing or 'at work'}, at {at}; nothing has ended it",
        "interrupted": f"the run was stopped on request at {at}; nothing has failed, and the same command resumes the run",
    }.get(now.state, f"the run is dead at {at}: no process owns it, and how its processes ended was not seen")
    held = "All of them at once: a reboot, the kernel out of memory, or somebody killed them; the same command resumes the run."
    clues = (Clue(None, words), *(found.clues if found else ()))
    return Diagnosis("unknown", 0.0, clues, found.also if found else (), explanation=words if now.state != "dead" else held)


def _ended_with(folder: Path) -> int | None:
    """Return the exit code of a trainer that nobody dealt with yet; None where nobody saw it."""
    code: int | None = (read_json(folder / "ending.json") or {}).get("code")
    return code
