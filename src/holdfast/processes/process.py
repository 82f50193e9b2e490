"""Start an attempt, find a living one again, watch it to its end. Judges nothing: what an ending means is mind's question."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.base.child import module_command
from holdfast.base.files import Json, last_line, may_pass, read_json, takes_nothing, write_json
from holdfast.base.identity import Identity, alive, identify
from holdfast.base.locks import hold, holds
from holdfast.base.safe_open import open_log
from holdfast.base.signal_names import LIMITS
from holdfast.base.wait import wait_for_end
from holdfast.machine import clock
from holdfast.machine.kernel_log import marks
from holdfast.machine.place import Place
from holdfast.processes.attempt import Attempt
from holdfast.processes.ending import STUCK_S
from holdfast.processes.hang_timeout import TrainerHangTimeout
from holdfast.processes.hanging import end_hanging
from holdfast.processes.standby import Standby
from holdfast.processes.tree import below, bytes_read
from holdfast.run.attempt import is_closed, write_launch_spec
from holdfast.run.evaluations import is_over
from holdfast.run.folder import RunFolder
from holdfast.run.holder import signal_holder
from holdfast.run.outcomes import EndingKind, kind_by_code
from holdfast.run.types import Ending, Launch

LOOK_EVERY_S = 0.2
LAST_STEP_S = 60.0  # that a trainer may take to stop whose supervisor fails
_MOST_FAILED = 50  # looks at an attempt, one after the other, that its disk may fail: ten seconds
TOLD_S = 3.0  # for another rank's end to be written down
Tick = Callable[[Attempt], bool]


def start(launch: Launch, run: RunFolder, orders: Json, standby: Standby) -> Attempt:
    """Write a new attempt down, then give it to the standby, or start its shim. `orders` go into launch.json beside the launch itself."""
    number = max(run.attempts(), default=0) + 1
    folder = run.made(run.attempt(number))
    write_launch_spec(
        folder,
        launch,
        [*launch.argv, str(run.path), str(number)],
        trainer_lock=str(run.trainer_lock),
        writer_argv=module_command("holdfast.processes.writer", run.path, number),
        started=clock.now(),
        clock=os.environ.get(clock.CLOCK),
        **marks(Place()),
        **orders,
    )
    waiting = standby.take_over(folder, launch)
    return Attempt(number, folder, waiting or start_shim(folder), stood_by=waiting is not None)


def start_shim(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the parent of the attempt in `folder`."""
    with open_log(folder / "output.log") as output:
        return subprocess.Popen(
            module_command("holdfast.processes.shim", *options, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def adopt(run: RunFolder) -> Attempt | None:
    """Return the newest attempt whose end was not dealt with yet (no wreck.json), dead or alive; None when there is none."""
    numbers = run.attempts()
    if not numbers or is_closed(run.attempt(numbers[-1])):
        return None
    return Attempt(numbers[-1], run.attempt(numbers[-1]), shim=None)


class Looks:
    """Looks at an attempt: a disk that fails some of them, one after the other, ends no supervision."""

    def __init__(self) -> None:
        self.failed = 0

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Ignore an error of the file system that may pass. Raises OSError for any other, and where no look succeeds any more."""
        try:
            yield
            self.failed = 0
        except OSError as error:
            self.failed += 1
            if not may_pass(error) or self.failed >= _MOST_FAILED:
                raise


def watch(attempt: Attempt, run: RunFolder, tick: Tick) -> Ending:
    """Wait until the attempt has ended. `tick` is called all the while; when it returns True the trainer is asked to stop."""
    asked, looks = False, Looks()
    timeout = TrainerHangTimeout(run, attempt.number, run.config().run.hang_s)
    while True:
        ends: list[int] = []
        with looks.one():
            ending = _ending(attempt, run)
            if ending is not None:
                return ending
            if tick(attempt) and not asked:
                asked = _ask_to_stop(attempt, run)
            pulse = attempt.pulse()
            overdue = timeout.overdue(pulse, bytes_read(living_pids(attempt).values(), from_disks=True) if pulse is None else 0)
            if overdue is not None:
                trainers = _trainers(attempt) or _unnamed(attempt, run.trainer_lock)
                if why := end_hanging(attempt, trainers, run.trainer_lock, overdue):
                    return Ending("stuck", facts={"reason": why})
            ends = watched(attempt)
        wait_for_end(ends, LOOK_EVERY_S)


def watched(attempt: Attempt) -> list[int]:
    """Return the process whose end is the attempt's; collect a shim of our own that has died."""
    if attempt.shim is not None and attempt.shim.poll() is None:
        return [attempt.shim.pid]
    return list(living_pids(attempt).values())[:1]


def living_pids(attempt: Attempt) -> dict[str, int]:
    """Return the pids of the attempt's processes that are alive, by role."""
    named = {f"rank {rank}" if rank else "trainer": trainer for rank, trainer in _trainers(attempt).items()}
    found = {"shim": read_json(attempt.folder / "nurse.json"), **named}
    return {role: identity["pid"] for role, identity in found.items() if alive(identity)}


def end_seen(attempt: Attempt, run: RunFolder) -> Json | None:
    """Return what was seen of an attempt's end: {} where nobody saw it, None while it may still be alive.

    One that was written down and never started is called off under the lock, so that a slow shim cannot start it afterwards.
    """
    file = attempt.folder / "ending.json"
    if (seen := read_json(file)) is not None:
        return seen
    with contextlib.ExitStack() as locked:
        try:
            free = locked.enter_context(hold(run.trainer_lock, wait=False))
        except OSError as error:
            if not takes_nothing(error):
                raise
            return None if living_pids(attempt) or not _shim_was_there(attempt) else {}
        return _called_off(attempt, file) if free else None


def _called_off(attempt: Attempt, file: Path) -> Json | None:
    """Return the facts of the end of an attempt whose lock is ours, as `end_seen` does."""
    if (seen := read_json(file)) is not None:
        return seen
    if _shim_was_there(attempt):
        return {}
    if attempt.shim is not None and attempt.shim.poll() is None:
        return None
    called_off: Json = {"code": None, "called_off": True, "ended": clock.now()}
    write_json(file, called_off)
    return called_off


def plain_ending(seen: Json, facts: Json) -> Ending:
    """Judge how an attempt ended, by what was seen of its end alone; facts: of one that ran."""
    if seen and seen.get("code") is None:
        return Ending("never_started")
    if not seen:
        return Ending("vanished")
    return Ending("killed" if seen["code"] < 0 else "error", seen["code"], lived_s(seen), facts | _limits(seen))


def _limits(seen: Json) -> Json:
    return {name: seen[name] for name in LIMITS if name in seen}


def lived_s(seen: Json) -> float | None:
    """Return the seconds between start and end; None where they are not known."""
    return float(seen["ended"] - seen["began"]) if "began" in seen else None


def _ending(attempt: Attempt, run: RunFolder) -> Ending | None:
    """Return how the attempt ended, or None while it may still be alive."""
    seen = end_seen(attempt, run)
    if seen is None:
        return None
    if seen.get("called_off"):
        return Ending("never_started")
    result = read_json(attempt.folder / "result.json") or {}
    hang = read_json(attempt.folder / "hang.json")
    code, seconds = seen.get("code"), lived_s(seen)
    if hang is not None and not result and not went_on(attempt, run.steps_file, hang):
        return Ending("hang", code, seconds, hang)
    kind: EndingKind | None = result.get("kind")
    if kind_by_code(code) == "disk_full":
        kind = kind or "disk_full"  # which takes no account either
    if kind == "finished" or code == 0:
        kind = "finished" if is_over(run) else None  # any library can end a process with code 0
    if kind is not None:
        return Ending(kind, code, seconds, result | (_limits(seen) if kind == "out_of_memory" else {}))
    facts = {"rank": seen["rank"], "codes": seen["codes"]} if "rank" in seen else {}
    if kind_by_code(code) == "peer_lost":
        return _of_another_rank(attempt, seen, seconds) or Ending("peer_lost", code, seconds, facts)
    return plain_ending(seen, facts)


def went_on(attempt: Attempt, journal: Path, hang: Json) -> bool:
    """Return whether an attempt came further than where it is said to hang: who meant to end it was killed before.

    The next step tells nothing: a rank without rows in it may hang behind it.
    """
    row = last_line(journal)
    return row is not None and row["attempt"] == attempt.number and row["step"] > (hang.get("step") or 0) + 1


def _of_another_rank(attempt: Attempt, seen: Json, seconds: float | None) -> Ending | None:
    """Return the end of a rank that another launcher started, which its own command wrote down; None where none did within a moment."""
    while True:
        told = [read_json(file) for file in sorted(attempt.folder.glob("ended*.json"))]
        first = next((one for one in told if one and kind_by_code(one["code"]) != "peer_lost"), None)
        if first is not None:
            facts = {"rank": first["rank"], "codes": {str(one["rank"]): one["code"] for one in told if one}}
            return Ending("killed" if first["code"] < 0 else "error", first["code"], seconds, facts)
        if abs(clock.now() - seen["ended"]) > TOLD_S:  # also where another boot's clock was ahead
            return None
        time.sleep(LOOK_EVERY_S)


def _shim_was_there(attempt: Attempt) -> bool:
    """Return whether this machine's shim was there, judged by what it started: another machine's rank may be there before it."""
    return (attempt.folder / "nurse.json").exists() or (attempt.folder / "rank0.json").exists()


def _trainers(attempt: Attempt) -> dict[int, Identity]:
    """Return who trains, by rank, as far as they have told their names."""
    named = {file.stem.removeprefix("rank"): file for file in attempt.folder.glob("rank*.json")}
    entries = {int(rank): read_json(file) for rank, file in named.items() if rank.isdecimal()}
    return {rank: entry["identity"] for rank, entry in sorted(entries.items()) if entry}


def _unnamed(attempt: Attempt, lock: Path) -> dict[int, Identity]:
    """Return who was started to train and has told no name: below the shim, with the run's lock. It may hang before its first line."""
    shim = living_pids(attempt).get("shim")
    started = [pid for pid in (below(shim) if shim else ()) if holds(pid, lock)]
    return {rank: found for rank, pid in enumerate(started) if (found := identify(pid))}


def end_strays(run: RunFolder) -> None:
    """End what an earlier start of the group left alive here: the ranks it trained with are gone. Its newest snapshot stays."""
    attempt = adopt(run)
    if attempt is None:
        return
    shim: Identity | None = read_json(attempt.folder / "nurse.json")  # type: ignore[assignment]
    for identity in (shim, *_trainers(attempt).values()):
        if identity and signal_holder(identity, run.trainer_lock, signal.SIGKILL):
            wait_for_end([identity["pid"]], STUCK_S)


def end_newest(run: RunFolder) -> None:
    """Have the newest attempt's trainer stop after its step, and end what is still there a while later: nobody will watch it any more."""
    ask_newest_to_stop(run)
    attempt = adopt(run)
    until = time.monotonic() + LAST_STEP_S
    while attempt is not None and (pids := list(living_pids(attempt).values())) and time.monotonic() < until:
        wait_for_end(pids[:1], LOOK_EVERY_S)
    end_strays(run)


def ask_newest_to_stop(run: RunFolder) -> None:
    """Send SIGTERM to the newest attempt's trainer, where it lives; a second one changes nothing."""
    attempt = adopt(run)
    if attempt is not None:
        _ask_to_stop(attempt, run)


def _ask_to_stop(attempt: Attempt, run: RunFolder) -> bool:
    """Send SIGTERM to the trainer; False while it has not told its name yet."""
    trainer = _trainers(attempt).get(0)
    return alive(trainer) and signal_holder(trainer, run.trainer_lock, signal.SIGTERM)
