"""Watch over somebody else's command to its end, and conclude its run: summary, post-mortem, exit code."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.base.errors import BLOCKED, DONE, GAVE_UP, INTERRUPTED, Stop
from holdfast.base.file_errors import file_error
from holdfast.base.files import Json, read_json, write_bytes, write_json
from holdfast.base.signal_names import ended_by
from holdfast.config.notify import Notify
from holdfast.machine import clock
from holdfast.machine.gpus import read_gpus
from holdfast.machine.place import Place
from holdfast.machine.system import read_system
from holdfast.processes.attempt import Attempt
from holdfast.report.audience import OutputViewer, RunAudience
from holdfast.report.run.report import write_report
from holdfast.report.words import shown
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.outlived import FolderGone
from holdfast.supervision.command.saved import rerun
from holdfast.supervision.command.signs import ProgressSigns
from holdfast.supervision.command.standard_input import has_data
from holdfast.supervision.command.told_at_end import UNSEEN, after_words, compare, post_mortem, well, write_summary
from holdfast.supervision.companions.notified import notified, read_notify
from holdfast.supervision.companions.sampled import sampled
from holdfast.supervision.companions.watched import attended
from holdfast.supervision.foreign_checkpoints.kept import sweep_snapshots
from holdfast.supervision.full_disk import supervised
from holdfast.supervision.moved import anchored
from holdfast.supervision.remote.elsewhere import sending
from holdfast.supervision.signals import StopSignals
from holdfast.supervision.supervise import RunResult, View

_KEPT_THERE = 2


def run_command(
    run: RunFolder,
    command: Command,
    audience: RunAudience,
    echo: OutputViewer,
    stop: StopSignals,
    notify: Notify | None = None,
    beside: RunFolder | None = None,
) -> tuple[int, Json]:
    """Bring the command to an end; exit code and summary. Raises Stop where it is given up, or its end cannot be written.

    notify: who is told; None: whom the run told before. beside: a run of the same command, which each step is held against at the end.
    """
    if not run.machine_file.exists():
        place = Place()
        write_json(run.machine_file, read_system(place, run.path) | {"gpus": read_gpus(place, {})})
    if command.to and not (run.path / "run.json").exists():
        run.write_id(uuid.uuid4().hex)
    run.heal_journals(audience.tell)
    run.summary_file.unlink(missing_ok=True)
    sweep_snapshots()

    def follow(attempt: Attempt, from_end: bool) -> None:
        echo.drain()
        if stop.listening:
            echo.follow(attempt.folder / "output.log", from_end)

    unread = has_data(0)

    def tick(_: ProgressSigns) -> None:
        nonlocal unread
        folder.flush()
        echo.look()
        if not unread and not command.stdin and (unread := has_data(0)):
            tell("standard input has data now, which the command does not get: only a file is passed on (< FILE)")

    def tell(text: str) -> None:
        echo.drain()
        audience.tell(text)
        with contextlib.suppress(FileNotFoundError):  # the run folder was removed
            folder.append(run.path / "told.jsonl", {"time": round(clock.now(), 3), "text": text})

    notify = notify or read_notify(run)
    stop.running = True
    removed = Stop(BLOCKED, f"{run.path} was removed while its command was supervised", "run it again")
    with (
        anchored(run.path, audience.tell) as anchor,
        supervised(run, tell, removed, partial(_full_disk, run)) as folder,
        attended(folder, command.hang_s, tell),
        sampled(run, tell),
        notified(run, notify, command.hang_s, tell),
        sending(folder, command.to, _KEPT_THERE, command.hang_s, tell, command.to_every),
    ):
        user = CommandRun(folder, command, View(tick, tell, stop.wish, follow))
        try:
            outcome = anchor.going_on(user.to_its_end)
        except FolderGone as gone:
            return _without_folder(run, gone.code, stop.wish() > 0, audience.tell)
        except Exception as error:
            if isinstance(error, Stop) or (isinstance(error, OSError) and file_error(error)):
                user.end()  # the run folder cannot be read or written
            elif left := user.left_running():
                error.add_note(left)  # a bug of ours ends nobody's training
            raise
        finally:
            user.standby.discard()
            user.states.release()
        echo.drain()
        return _conclude(user, outcome, audience, beside)


def _without_folder(run: RunFolder, code: int | None, stopped: bool, tell: Callable[[str], None]) -> tuple[int, Json]:
    """Say how a command ended whose run folder was removed under it; exit code and all that is left of a summary."""
    how = "how it ended is unknown" if code is None else f"it {ended_by(code)}"
    reason = f"{run.path} was removed while the command was running, which went on: {how}; nothing else is known of it"
    tell(reason)
    status, exits = ("finished", DONE) if code == 0 else ("interrupted", INTERRUPTED) if stopped else ("gave_up", GAVE_UP)
    return exits, {"run": str(run.path), "status": status, "exit_code": code, "reason": reason}


def _full_disk(run: RunFolder, why: str) -> tuple[str, None]:
    """Say that a disk takes nothing of how the newest attempt ended, for which its shim has kept room."""
    numbers = run.attempts()
    code = (read_json(run.attempt(numbers[-1]) / "ending.json") or {}).get("code") if numbers else None
    ended = "was not started" if code is None else ended_by(code)
    return f"{why}: the command {ended}, and that cannot be written down", None


def _conclude(user: CommandRun, outcome: RunResult, audience: RunAudience, beside: RunFolder | None) -> tuple[int, Json]:
    run, command, move, after = user.run, user.command, outcome.move, user.after if outcome.done else None
    doubt = user.states.doubt() if outcome.done else ""
    status = "gave_up" if move else "finished" if outcome.done else "interrupted"
    reason = move.reason if move else after_words(after) or "ended with exit code 0" if outcome.done else "stopped on request"
    user.states.note_sharing()
    compared = compare(run, beside) if beside is not None else None
    summary = write_summary(user, status, reason, outcome.ending.code, doubt, after, compared)
    if compared is not None:
        (audience.tell if compared["departs"] else audience.say)(compared["says"])
    if outcome.done:
        run.event("finished", step=summary["steps"])
        if doubt:
            run.event("checkpoint_doubted", reason=doubt)
        (audience.tell if summary["doubt"] not in (None, UNSEEN) else audience.say)(well(summary, user.command.place is not None))
        _report(run, audience)
        return DONE, summary
    if move is None:
        run.event("interrupted", step=summary["steps"])
        at = f"after step {summary['steps']}" if summary["steps"] else "before any step was seen"
        audience.tell(f"stopped {at}; {rerun(summary['nothing_saved'], command)}")
        _report(run, audience)
        return INTERRUPTED, summary
    run.event("gave_up", step=summary["steps"], reason=move.reason)
    if outcome.ending.kind == "refused":
        _report(run, audience)
        raise Stop(BLOCKED, move.reason, "fix that, then rerun the same command", summary)
    lines = post_mortem(run, command, outcome, summary)
    write_bytes(run.path / "post-mortem.md", "\n".join(lines).encode() + b"\n")
    _report(run, audience)
    raise Stop(GAVE_UP, "\n".join([f"gave up: {move.reason}", *(f"  {line}" for line in lines[2:])]), "", summary)


def _report(run: RunFolder, audience: RunAudience) -> None:
    """Write the page of the run and say where it is; a run is no worse for a disk that has no room for it."""
    page = run.path / "report.html"
    try:
        write_report(run, page)
    except OSError as error:
        audience.tell(f"the report could not be written ({error.strerror}); holdfast report {shown(run.path)} makes it later")
    else:
        audience.say(f"report: {shown(page)}")


def finished_before(run: RunFolder) -> Json | None:
    """Return the summary of a command's run that is at its end, else None."""
    summary = read_json(run.summary_file)
    return summary if summary and summary.get("status") == "finished" else None


def free_name(runs: Path, name: str, command: Command) -> Path:
    """Choose a run folder below `runs` for this command: an unfinished run of it is resumed, others are left alone."""
    for number in range(1, 10000):
        place = runs / (name if number == 1 else f"{name}-{number}")
        if not place.exists():
            return place
        known = read_json(place / "command.json")
        if (
            known
            and known.get("argv") == list(command.argv)
            and known.get("folder") == command.folder
            and not finished_before(RunFolder(place))
        ):
            return place
    return runs / f"{name}-{int(time.time())}"
