"""What follows the last step: the artifact, its proof, the summary, the report. Trains nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from holdfast.base.child import trainer_command
from holdfast.base.errors import GAVE_UP, Stop
from holdfast.base.files import Json, read_json, read_lines, write_json
from holdfast.base.identity import alive
from holdfast.base.locks import Tell, taken
from holdfast.base.safe_open import open_log
from holdfast.base.units import counted
from holdfast.base.wait import wait_for_end
from holdfast.base_model.folder import read_model
from holdfast.book import cards_of
from holdfast.config.config import Config
from holdfast.diagnosis.health_signs import at_the_end
from holdfast.planning.past_runs import remember
from holdfast.processes.ending import Stuck, end
from holdfast.processes.hang_timeout import FIRST_S, HangTimeout, reading_s
from holdfast.processes.pauses import Pauses
from holdfast.processes.writer import persist_newest
from holdfast.report.audience import RunAudience
from holdfast.report.run.report import write_report
from holdfast.report.summarise import of_steps, summarise
from holdfast.report.words import words_of
from holdfast.run.artifact import Artifact, artifact_of
from holdfast.run.attempt import close
from holdfast.run.evaluations import is_over, read_evaluations, stopped_early
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import exit_code
from holdfast.run.plan import read_plan
from holdfast.run.snapshots.checkpoint import Checkpoint, newest_valid, next_valid
from holdfast.run.timeline import newest_settings, read_timeline
from holdfast.supervision.launch import child_environment, trainer_launch
from holdfast.supervision.preparation.types import preparation_of
from holdfast.supervision.publish import publish_artifact
from holdfast.supervision.records import journals_of

_POLL_S = 0.05
_LEAVING_S = 5.0


def finish(run: RunFolder, config: Config, places: list[Path], audience: RunAudience, stop: Callable[[], bool]) -> Json:
    """Publish the final checkpoint as the artifact, load it afresh, write summary and report. May be called again at any time.

    Raises KeyboardInterrupt when `stop` asks for it meanwhile; the run then counts as interrupted, and its evaluation is still to come.
    """
    keep_newest(run, places, config, audience.tell)
    newest, passed_over = newest_valid(run)
    if newest is None or newest.step != run.committed() or not is_over(run):
        state = f"step {newest.step}" if newest else "nothing"
        text = f"the newest checkpoint that verifies is {state}, the run stands at step {run.committed()}"
        text += "".join(f"; {one['checkpoint']}: {one['reason']}" for one in passed_over[:1])
        _close(run)
        raise Stop(GAVE_UP, text, "check the disk; rerun the same command to train the missing steps again")
    artifact = _chosen(run, config, newest, audience)
    artifact = replace(artifact, artifact_sha256=publish_artifact(run, artifact, _folder_of(config.model)))
    began = time.monotonic()
    try:
        _evaluate(run, config, audience, stop)
    finally:
        run.event("final_evaluation_ended", seconds=round(time.monotonic() - began, 3))
    summary = write_summary(run, "finished", None, artifact)
    run.event("finished", steps=summary["steps"], artifact_step=artifact.step, artifact_sha256=artifact.artifact_sha256)
    remember(run, config, summary, audience.say)
    _close(run)
    for place in [file for first in places for file in (first, *first.parent.glob(f"{first.stem}.rank*"))]:
        try:
            place.unlink(missing_ok=True)
        except OSError as error:  # a read-only /dev/shm, or another user's file of that name
            run.event("snapshot_file_left", file=str(place), reason=error.strerror)
    audience.summary(summary, run)
    return summary


def _close(run: RunFolder) -> None:
    """Mark the newest attempt as dealt with: the next command starts another instead of taking up this one."""
    close(run.attempt(run.attempts()[-1]), {"ending": {"kind": "finished"}})


def _chosen(run: RunFolder, config: Config, newest: Checkpoint, audience: RunAudience) -> Checkpoint:
    """Choose the checkpoint of the artifact: the best by held-out loss where such losses are known and wanted, else the newest."""
    rows = read_evaluations(run) if config.evaluate.every and config.evaluate.keep_best else []
    ranked = sorted((row for row in rows if row["loss"] is not None), key=lambda row: (row["loss"], row["step"]))
    if not ranked:
        return newest
    chosen, lost = next_valid(run, [row["step"] for row in reversed(ranked)])
    found = chosen or newest
    for entry in lost[:1]:
        run.event("best_checkpoint_lost", **entry, instead=found.step)
        what = words_of(config).artifact
        audience.tell(f"the best state, {entry['checkpoint']}, is lost: {entry['reason']}; the {what} is that of step {found.step}")
    return found


def keep_newest(run: RunFolder, places: list[Path], config: Config, tell: Tell) -> int | None:
    """Make the newest state durable, whoever was meant to; return the step that is now safe on disk."""
    artifact = _artifact(run)
    if artifact is not None:
        persist_newest(run, places, artifact, config.save, tell)
    _see_out(run)
    checkpoint, _ = newest_valid(run)
    return checkpoint.step if checkpoint else None


def _see_out(run: RunFolder) -> None:
    """Wait until writer and shim of the newest attempt are gone, so that nothing of the run outlives its supervisor."""
    if not (numbers := run.attempts()):
        return
    folder = run.attempt(numbers[-1])
    until = time.monotonic() + _LEAVING_S
    for identity in ((read_json(folder / "writer.json") or {}).get("identity"), read_json(folder / "nurse.json")):
        while alive(identity) and time.monotonic() < until:
            wait_for_end([identity["pid"]], _LEAVING_S)
    while taken(run.trainer_lock) and time.monotonic() < until:
        time.sleep(_POLL_S)


def _artifact(run: RunFolder) -> Artifact | None:
    for number in reversed(run.attempts()):
        ready = read_json(run.attempt(number) / "ready.json")
        if ready:
            return artifact_of(ready)
    return None


def _folder_of(model: str) -> Path | None:
    """Return the base model's folder, if it is still there."""
    try:
        return read_model(model).folder
    except Stop:
        return None


def _evaluate(run: RunFolder, config: Config, audience: RunAudience, stop: Callable[[], bool]) -> None:
    """Measure held-out loss of base and tuned model, by plain PEFT in a child process; a failure is told and leaves them unknown.

    A GPU that is gone is waited for, as in training; one that was killed is started once more, and a hang is ended. Raises Stop where it
    cannot be ended.
    """
    run.evaluation_file.unlink(missing_ok=True)
    rows = run.plan().rows.held_out
    on = f"on {counted(rows, 'held-out row')}" if rows else "(no row is held out, so no loss is measured)"
    audience.say(f"evaluating: {words_of(config).loaded} {on}")
    log = run.path / "evaluation.log"

    def ask() -> int | str:
        return _ask(run, config, log, audience, stop)

    ended = Pauses(run, audience.tell).until_found(ask, exit_code("device_gone"), "the evaluation found no GPU", stop)
    if _killed(run, ended):
        run.event("evaluation_killed", code=ended, log=str(log))
        audience.tell(f"the evaluation was killed (exit code {ended}); it begins once more")
        ended = ask()
    if ended == exit_code("device_gone") and stop():
        raise _interrupted(run)
    if not run.evaluation_file.exists():  # written whole or not at all: an end behind that takes nothing from it
        reason = ended if isinstance(ended, str) else f"exit code {ended}"
        code = None if isinstance(ended, str) else ended
        run.event("evaluation_failed", code=code, reason=reason, log=str(log))
        audience.tell(f"the evaluation failed ({reason}); its log: {log}")


def _killed(run: RunFolder, ended: int | str) -> bool:
    """Return whether a signal ended the evaluation before it had written what it found: by chance, as far as is known."""
    return isinstance(ended, int) and ended < 0 and not run.evaluation_file.exists()


def _ask(run: RunFolder, config: Config, log: Path, audience: RunAudience, stop: Callable[[], bool]) -> int | str:
    """Have the child evaluate; return its exit code, or for how long it gave no sign of life before it was ended."""
    asked = rows_asked(config, run.plan().rows.held_out)
    timeout = HangTimeout(config.run.hang_s, FIRST_S + reading_s(run))
    with open_log(log, anew=True) as output, audience.counting("evaluating", asked) as show, _pipe() as (listen, tell):
        child = _start_evaluation(run, output, tell)
        try:
            while (code := child.poll()) is None:
                if stop():
                    raise _interrupted(run)
                with contextlib.suppress(BlockingIOError):
                    signs = os.read(listen, 1 << 16)
                    timeout.look()
                    show(signs.count(b"."))
                if silent := timeout.overdue():
                    return f"no sign of life for {silent.seconds:.0f} s"
                time.sleep(_POLL_S)
        finally:
            _end(run, child)
    return code


def rows_asked(config: Config, held_out: int) -> int:
    """Return how many rows the last evaluation asks for, of all models together."""
    return preparation_of(config).rows_asked(config, held_out)


def _interrupted(run: RunFolder) -> KeyboardInterrupt:
    write_summary(run, "interrupted", None)
    return KeyboardInterrupt("the training is done, its evaluation is not; rerun the same command to resume")


def _start_evaluation(run: RunFolder, output: IO[bytes], tell: int) -> subprocess.Popen[bytes]:
    """Start the evaluation in a session of its own, so that Ctrl-C reaches us alone."""
    command = trainer_command("evaluate", run.path, tell)
    environment, nothing = child_environment(trainer_launch(run).env), subprocess.DEVNULL
    return subprocess.Popen(command, stdin=nothing, stdout=output, stderr=output, env=environment, start_new_session=True, pass_fds=[tell])


def _end(run: RunFolder, child: subprocess.Popen[bytes]) -> None:
    """End the child that evaluates. Raises Stop where the kernel does not let it go."""
    try:
        end(child, "the evaluation")
    except Stuck as stuck:
        summary = write_summary(run, "gave_up", str(stuck))
        hint = "restart the machine, or at least the driver; then rerun the same command: the adapter is made, its evaluation is not"
        raise Stop(GAVE_UP, str(stuck), hint, summary) from None


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    """Yield (descriptor to read from, which does not block, descriptor to write to), and close both."""
    listen, tell = os.pipe()
    os.set_blocking(listen, False)
    try:
        yield listen, tell
    finally:
        os.close(listen)
        os.close(tell)


def write_summary(run: RunFolder, status: str, reason: str | None, artifact: Checkpoint | None = None) -> Json:
    """Write summary.json and report.html from what lies in the run folder; `artifact` is what RUN/adapter was made of."""
    summary = summary_of(run, status, reason, artifact)
    run.flush_all(status)
    write_json(run.summary_file, summary)
    write_report(run, run.path / "report.html")
    return summary


def summary_of(run: RunFolder, status: str, reason: str | None, artifact: Checkpoint | None = None) -> Json:
    """Return the content of summary.json, also for when it cannot be written."""
    told = journals_of(run, list(run.steps()))
    signs = [event for event in told.events if event["event"] == "sign"]
    known = of_steps(
        told,
        health=at_the_end(told.rows, signs, cards_of("signs").values()),
        evaluation=read_json(run.evaluation_file) or {},
        evaluations=read_evaluations(run),
        quarantined=list(read_lines(run.quarantine_file)),
        stopped_early=_stopped_early(run) if status == "finished" else None,
        artifact_step=artifact.step if artifact else None,
        artifact_sha256=artifact.artifact_sha256 if artifact else None,
        is_adapter=artifact is None or artifact.kind == "adapter",
        until=_goals(run),
        learns=plan.model_dump(include={"learns"})["learns"] if (plan := read_plan(run.plan_file)) else {},
    )
    failed = sorted({str(event.get("tracker")) for event in told.events if event["event"] == "tracking_failed"})
    return summarise(status, reason, told, known) | ({"trackers_failed": failed} if failed else {})


def _goals(run: RunFolder) -> Json | None:
    until = run.config().train.until
    return None if until is None else until.model_dump(mode="json", exclude_none=True)


def _stopped_early(run: RunFolder) -> Json | None:
    """Return why the run ended before its last step, or None when it did not; `steps` is where it would have ended."""
    settings = newest_settings(read_timeline(run.timeline_file))
    found = stopped_early(read_evaluations(run), run.config().evaluate, settings.patience_from)
    return found | {"steps": settings.steps} if found and found["step"] < settings.steps else None
