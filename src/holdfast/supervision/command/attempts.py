"""Start one attempt of somebody else's command, watch it, ask it to stop, end it with all it started. Judges nothing.

Its watch and its reading of an end stay beside those of our own trainer (processes/process.py): they share the start of the shim, the
waiting and `end_seen`, and differ in each line between. A command is signalled by its process group, is killed where it does not stop in
time, and has neither ranks, a pulse in shared memory nor an account of its end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.base.files import Json, read_json, write_json
from holdfast.base.identity import identify
from holdfast.base.locks import holds
from holdfast.base.safe_open import open_log
from holdfast.base.wait import wait_for_end
from holdfast.machine import clock
from holdfast.machine.kernel_log import marks
from holdfast.machine.place import Place
from holdfast.processes.attempt import Attempt
from holdfast.processes.command_session import ENOUGH
from holdfast.processes.ending import STUCK_S, stuck
from holdfast.processes.hang_timeout import HangTimeout, Overdue
from holdfast.processes.hanging import STACKS_S
from holdfast.processes.process import (
    LOOK_EVERY_S,
    Looks,
    end_seen,
    lived_s,
    living_pids,
    plain_ending,
    start_shim,
    watched,
    went_on,
)
from holdfast.processes.tree import bearing, below, waits_in
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending
from holdfast.supervision.command.outlived import KeptAttempts
from holdfast.supervision.command.signs import ProgressSigns, Signs
from holdfast.supervision.command.standby import CommandStandby

ATTEMPT = "HOLDFAST_ATTEMPT"  # in a command's environment: the folder of the attempt that it belongs to
_PY_SPY_S = 10.0
_SITE = Path(__file__).parents[2] / "callback" / "site"


def start(
    run: RunFolder,
    argv: tuple[str, ...],
    folder: str,
    env: dict[str, str | None],
    orders: Json,
    standby: CommandStandby,
    kept: KeptAttempts,
) -> Attempt:
    """Write a new attempt down, then give it to the standby, or start its shim; what the command may remove is kept before."""
    number = max(run.attempts(), default=0) + 1
    attempt = run.made(run.attempt(number))
    env = env | {ATTEMPT: str(attempt)}
    facts = {"argv": list(argv), "env": env, "folder": folder, "settings": {}, "trainer_lock": str(run.trainer_lock)}
    write_json(
        attempt / "launch.json",
        facts | {"started": clock.now(), "clock": os.environ.get(clock.CLOCK)} | marks(Place()) | orders,
    )
    kept.read()
    waiting = standby.hand_over(attempt)
    return Attempt(number, attempt, waiting or start_shim(attempt, "--command"), stood_by=waiting is not None)


def watch(
    attempt: Attempt, run: RunFolder, command: Command, signs: Signs, timeout: HangTimeout, tick: Callable[[ProgressSigns], int]
) -> Ending:
    """Wait until the attempt has ended. `tick` tells what its user wants: 0 go on, 1 ask it to stop, 2 end it now.

    Raises FileNotFoundError where its folder is gone; the command goes on.
    """
    asked: float | None = None
    hung: Json | None = None
    living: dict[str, int] = {}
    looks = Looks()
    while True:
        ends: list[int] = []
        with looks.one():
            if not attempt.folder.is_dir():
                raise FileNotFoundError(str(attempt.folder))
            if (ending := _ending(attempt, run, hung)) is not None:
                if attempt.shim is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        attempt.shim.wait(STACKS_S)  # it has nothing left to do
                return ending
            living = living_pids(attempt)
            pid = living.get("trainer")
            seen = signs.look(pid)
            now = time.monotonic()
            timeout.look(seen.stepped, seen.printed, seen.worked)
            wish = tick(seen)
            if wish and asked is None and pid is not None:
                asked = now
                if _is_of(attempt, run.trainer_lock, pid):
                    _signal(pid, signal.SIGTERM)
            late = asked is not None and now - asked > command.stop_s
            if (wish == 2 or late) and pid is not None and (why := end(attempt, run.trainer_lock)):
                return Ending("stuck", facts={"reason": why})
            if asked is None and hung is None and pid is not None and (overdue := timeout.overdue()):
                hung = _hanging(pid, seen, overdue)
                if why := _end_hanging(attempt, run.trainer_lock, pid, hung):
                    return Ending("stuck", facts={"reason": why})
            ends = watched(attempt)
        wait_for_end(ends, LOOK_EVERY_S)


def followed(attempt: Attempt) -> str:
    """Return the name of what the command left in the background and is followed in its place; empty where it is the command itself."""
    return str((read_json(attempt.folder / "rank0.json") or {}).get("followed") or "")


def leave_followed(attempt: Attempt) -> None:
    """Have what is followed in the background ended."""
    with contextlib.suppress(OSError):
        (attempt.folder / ENOUGH).touch()


def is_left(attempt: Attempt) -> bool:
    """Return whether what was followed in the background was found to be no training."""
    return (attempt.folder / ENOUGH).exists()


def _signal(pid: int, number: int) -> None:
    """Send a signal to the command and to its process group, where it leads one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            os.kill(pid, number)


def _is_of(attempt: Attempt, lock: Path, pid: int) -> bool:
    """True if a process that rank0.json names belongs to this attempt: a file may name any.

    It was given the attempt's name in its environment, and the run's lock by its shim. A program may lose both (setproctitle, a
    daemon); then it is below the shim, which has the lock.
    """
    if pid in bearing(ATTEMPT, str(attempt.folder)) or holds(pid, lock):
        return True
    shim = living_pids(attempt).get("shim")
    return shim is not None and holds(shim, lock) and pid in below(shim)


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def end(attempt: Attempt, lock: Path) -> str:
    """Kill the command and all it has started; why that cannot be, in words, empty where it is gone."""
    living = living_pids(attempt)
    shim, pid = living.get("shim"), living.get("trainer")
    if pid is None:
        _kill(bearing(ATTEMPT, str(attempt.folder)))
        return ""
    if not _is_of(attempt, lock, pid):
        return f"process {pid}, named by rank0.json, was not started by this attempt; it is left alone"
    _kill(below(shim) if shim is not None and holds(shim, lock) else [pid, *below(pid), *bearing(ATTEMPT, str(attempt.folder))])
    _signal(pid, signal.SIGKILL)
    wait_for_end([pid], STUCK_S)
    return "" if identify(pid) is None or "trainer" not in living_pids(attempt) else stuck("the command")


def _hanging(pid: int, seen: ProgressSigns, overdue: Overdue) -> Json:
    """Return where a silent command stands."""
    where = [waits_in(one) | {"pid": one} for one in [pid, *below(pid)][:16]]
    at = f" after step {seen.step}" if seen.step is not None else ""
    text = f"no step, no output and no sign of work for {overdue.seconds:.0f} s{at} (limit {overdue.limit_s:.0f} s)"
    return {"reason": text, "step": seen.step, "processes": where}


def _end_hanging(attempt: Attempt, lock: Path, pid: int, hung: Json) -> str:
    """Write down where it stands, its stacks included, then end it; why that cannot be, as `end` says."""
    if _is_of(attempt, lock, pid):
        _write_stacks(attempt, pid)
    with contextlib.suppress(OSError):
        write_json(attempt.folder / "hang.json", hung)
    return end(attempt, lock)


def _write_stacks(attempt: Attempt, pid: int) -> None:
    """Have its stacks in its log: by the callback's handler where there is one, else by py-spy where that is installed."""
    if (read_json(attempt.folder / "pulse.json") or {}).get("stacks"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
            wait_for_end([pid], STACKS_S)
        return
    tool = shutil.which("py-spy")
    if tool is None:
        return
    with contextlib.suppress(OSError, subprocess.TimeoutExpired), open_log(attempt.folder / "output.log") as output:
        subprocess.run(
            [tool, "dump", "--pid", str(pid)], stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=_PY_SPY_S, check=False
        )


def _ending(attempt: Attempt, run: RunFolder, hung: Json | None) -> Ending | None:
    """Return how the attempt ended, or None while it may still be alive."""
    seen = end_seen(attempt, run)
    if seen is None:
        return None
    if hung is None and (noted := read_json(attempt.folder / "hang.json")) and not went_on(attempt, run.progress_file, noted):
        hung = noted
    left = {"left": seen.get("left") or [], "left_printed": seen.get("left_printed")}
    left |= {"fell": seen["fell"]} if seen.get("fell") else {}
    if hung is not None and not seen.get("called_off") and seen.get("code") != 0:  # 0: who meant to end it was killed before
        return Ending("hang", seen.get("code"), lived_s(seen), hung)
    if not seen:
        _kill(bearing(ATTEMPT, str(attempt.folder)))  # its shim has died before it
    if told := seen.get("could_not_start"):
        return Ending("refused", None, lived_s(seen), {"reason": f"it could not be started: {told}"})
    return ending_of(seen, left)


def ending_of(seen: Json, left: Json) -> Ending:
    """Return the end that was seen; left: what the command left running."""
    return Ending("finished", 0, lived_s(seen), left) if seen.get("code") == 0 else plain_ending(seen, left)


def environment_of(command: Command, checkpoints: Sequence[Path], snapshot: Path) -> dict[str, str | None]:
    """Return the callback's variables: where to resume from and keep its state; with --callback, a PYTHONPATH that registers it."""
    found: dict[str, str | None] = {
        "HOLDFAST_RESUME": "\n".join(str(one.resolve()) for one in checkpoints) or None,
        "HOLDFAST_SNAPSHOT": str(snapshot),
    }
    if "PYTHONUNBUFFERED" not in os.environ:
        found["PYTHONUNBUFFERED"] = "1"  # so that a killed program's last words are there
    if command.callback:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SITE), os.environ.get("PYTHONPATH")]))
    return found
