"""Supervise a prepared run to its end, or to the step at which it is asked to stop, and conclude it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.base.errors import AGAIN, BLOCKED, DONE, GAVE_UP, INTERRUPTED, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.units import counted, gib
from holdfast.book import cards_of
from holdfast.book.kinds.failure import Failure
from holdfast.config.config import Config
from holdfast.diagnosis.explain import answer
from holdfast.planning.standby import standby_mode
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import ask_newest_to_stop, end_newest
from holdfast.processes.rank_info import rank_info_of
from holdfast.processes.standby import Standby
from holdfast.report.audience import RunAudience
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.run.plan import RunPlan
from holdfast.run.snapshots.memory_places import memory_places, sweep
from holdfast.run.types import Launch
from holdfast.supervision.companions.notified import notified
from holdfast.supervision.companions.sampled import sampled
from holdfast.supervision.companions.trackers import tracked
from holdfast.supervision.companions.watched import attended
from holdfast.supervision.diagnose_run import diagnose_run
from holdfast.supervision.finish import finish, keep_newest, summary_of, write_summary
from holdfast.supervision.full_disk import supervised
from holdfast.supervision.launch import advised, trainer_launch
from holdfast.supervision.moved import anchored
from holdfast.supervision.remote.elsewhere import sending
from holdfast.supervision.signals import StopSignals
from holdfast.supervision.supervise import RunResult, View, supervise
from holdfast.supervision.training.hands import RealWorld
from holdfast.supervision.training.trainer_run import TrainerRun

_REMEDIES = 2  # of the diagnosis


def run_to_end(run: RunFolder, config: Config, faults_file: str | None, audience: RunAudience, stop: StopSignals) -> tuple[int, Json]:
    """Supervise a prepared run to its end, or to the step at which it is asked to stop; exit code and summary."""
    places = memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots)
    sweep(places[0].parent)
    orders: Json = {
        "session": uuid.uuid4().hex,
        "memory_places": [str(place) for place in places],
        "faults": faults_file,
    }
    for advice in advised(run):
        audience.say(f"environment of the trainer: {advice.name}={advice.value} ({advice.reason})")
    audience.begin(run, config)
    stop.running = True
    late: Json = {}
    removed = Stop(BLOCKED, f"{run.path} was removed while the run was going", "rerun the same command to start over")
    try:
        with (
            anchored(run.path, audience.tell) as anchor,
            supervised(run, audience.tell, removed, partial(_full_disk, run, places)) as folder,
        ):

            def tick(attempt: Attempt) -> None:
                folder.flush()
                if stop.asked_for():
                    audience.tell_stop()
                audience.tick(attempt)

            view = View(tick, audience.tell, stop.wish)
            run.summary_file.unlink(missing_ok=True)
            beside = attended(folder, config.run.hang_s, audience.tell)
            told = notified(folder, config.run.notify, config.run.hang_s, audience.tell)
            copied = sending(folder, config.save.to, config.save.keep, config.run.hang_s, audience.tell)
            with beside, sampled(folder, audience.tell), told, tracked(folder, config, audience.tell) as late, copied:
                with _standby(folder, config) as standby:
                    user = TrainerRun(partial(trainer_launch, config=config), folder, orders, view, RealWorld(standby))
                    _tell_processes(user.launch, run.plan(), audience)
                    outcome = anchor.going_on(lambda: supervise(user))
                audience.end()
                code, summary = anchor.going_on(lambda: _conclude(folder, config, places, outcome, audience, stop.asked_for))
            return code, summary | late
    except Stop as given_up:
        if given_up.answer is not None:
            given_up.answer |= late
        raise
    except Exception:
        with contextlib.suppress(OSError):
            end_newest(run)
        raise
    except KeyboardInterrupt:
        ask_newest_to_stop(run)  # the interrupt may have come before the first one was passed on
        raise
    finally:
        audience.end()


def _tell_processes(launch: Launch, plan: RunPlan, audience: RunAudience) -> None:
    """Say how many processes compute the parts of a step, and the memory they need; nothing where threads do."""
    if launch.ranks > 1 and launch.settings.at_once > 1:
        need = f"about {launch.ranks} x {gib(plan.peak_bytes)} of memory"
        audience.say(f"{launch.ranks} processes compute the parts of each step: {need} (train.parts_in: threads needs it once)")


def _standby(run: RunFolder, config: Config) -> Standby:
    ranks = trainer_launch(run, config).ranks
    mode = "off" if rank_info_of(os.environ) else standby_mode(config, run.plan(), read_json(run.machine_file) or {}, ranks)
    return Standby(run, mode, always=bool(config.run.standby))


def _conclude(
    run: RunFolder, config: Config, places: list[Path], outcome: RunResult, audience: RunAudience, stop: Callable[[], bool]
) -> tuple[int, Json]:
    if outcome.ending.kind == "finished":
        summary = finish(run, config, places, audience, stop)
        return DONE, summary
    saved = keep_newest(run, places, config, audience.tell)
    if outcome.move is None:
        summary = write_summary(run, "interrupted", None)
        run.event("interrupted", step=run.committed(), saved=saved)
        where = f"after step {run.committed()}" if run.committed() else "before the first step"
        audience.tell(f"stopped {where}; rerun the same command to resume")
        return INTERRUPTED, summary
    run.event("gave_up", step=run.committed(), reason=outcome.move.reason, saved=saved)
    summary = write_summary(run, "gave_up", outcome.move.reason)
    failure_report = outcome.failure_report
    if outcome.ending.kind == "peer_lost" and (rank_info := rank_info_of(os.environ)):
        text = f"the other ranks of {rank_info.launcher} are gone after step {run.committed()}"
        raise Stop(AGAIN, text, "start the same command on all of them again: it goes on from there", summary)
    if outcome.ending.kind == "refused":
        raise Stop(BLOCKED, outcome.move.reason, str(outcome.ending.facts.get("hint", "")), summary)
    audience.summary(summary, run)
    last = (
        [*diagnosed(run), *(f"| {line}" for line in [line for line in failure_report.lines if line.strip()][-3:])] if failure_report else []
    )
    log = run.attempt(run.attempts()[-1]) / "output.log"
    lost = f"of {counted(committed, 'committed step')} no state is left" if (committed := run.committed()) else "no step was committed"
    kept = f"the state after step {saved} is kept in {run.checkpoints}" if saved else lost
    text = f"gave up: {outcome.move.reason}\n  {kept}" + "".join(f"\n  {line}" for line in last)
    hint = f"read {log}; fix the cause, then rerun the same command to resume"
    if outcome.ending.kind == "no_state":  # no rerun brings it back
        hint = f"put a checkpoint back, or {run.anew()}"
    raise Stop(GAVE_UP, text, hint, summary)


def diagnosed(run: RunFolder) -> list[str]:
    """Return what `holdfast diagnose` says of the run, in a few lines; none where it knows no more than the reason says."""
    cards: dict[str, Failure] = cards_of("failures")
    found, _ = diagnose_run(run, cards, ended=True)
    if found.cause in ("unknown", "healthy"):
        return []
    told = answer(found, cards)
    remedies = [f"{number}. {one['what']}" for number, one in enumerate(told["remedies"][:_REMEDIES], 1)]
    more = f"all of it: holdfast diagnose {shown(run.path)}"
    return [f"{found.cause} ({found.confidence:.0%}): {told['explanation']}", *remedies, more]


def _full_disk(run: RunFolder, places: list[Path], why: str) -> tuple[str, Json]:
    state = next((place for place in places if place.exists()), None)
    kept = f"the newest state is in {state}" if state else "checkpoints so far are kept"
    text = f"{why} after step {run.committed()}; {kept}"
    return text, summary_of(run, "gave_up", text)
