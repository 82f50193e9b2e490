"""Start one attempt of somebody else's command, watch it, ask it to stop, end it with all it started. Judges nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

from holdfast.core.files import Json, read_json, write_json
from holdfast.core.identity import identify
from holdfast.core.run.command import Command
from holdfast.core.run.folder import RunFolder
from holdfast.core.safe_open import open_log
from holdfast.core.types import Ending
from holdfast.core.wait import wait_for_end
from holdfast.mind.pace import Pace
from holdfast.supervisor.command.signs import Seen, Signs
from holdfast.world.ending import STUCK_S, stuck
from holdfast.world.kernel import oom_kills
from holdfast.world.place import Place
from holdfast.world.process import LOOK_EVERY_S, STACKS_S, Attempt, end_seen, lived_s, living_pids, start_nurse, watched
from holdfast.world.tree import below, waits_in

_PY_SPY_S = 10.0


def start(run: RunFolder, argv: tuple[str, ...], folder: str, env: dict[str, str | None], orders: Json) -> Attempt:
    """Write a new attempt down, then start its nurse."""
    number = max(run.attempts(), default=0) + 1
    attempt = run.attempt(number)
    attempt.mkdir(parents=True)
    env = env | {"HOLDFAST_ATTEMPT": str(attempt)}
    facts = {"argv": list(argv), "env": env, "folder": folder, "settings": {}, "trainer_lock": str(run.trainer_lock)}
    write_json(attempt / "launch.json", facts | {"started": time.time(), "oom_kills": oom_kills(Place())} | orders)
    return Attempt(number, attempt, start_nurse("holdfast.world.command_nurse", attempt))


def watch(attempt: Attempt, run: RunFolder, command: Command, signs: Signs, pace: Pace, tick: Callable[[Seen], int]) -> Ending:
    """Wait until the attempt has ended. `tick` tells what its user wants: 0 go on, 1 ask it to stop, 2 end it now."""
    asked: float | None = None
    hung: Json | None = None
    living: dict[str, int] = {}
    while True:
        if not attempt.folder.is_dir():
            if attempt.nurse is not None:
                living = {"nurse": attempt.nurse.pid} | living
            end(attempt, living)
            raise FileNotFoundError(str(attempt.folder))
        if (ending := _ending(attempt, run, hung)) is not None:
            if attempt.nurse is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    attempt.nurse.wait(STACKS_S)  # it has nothing left to do
            return ending
        living = living_pids(attempt)
        pid = living.get("trainer")
        seen = signs.look(pid)
        now = time.monotonic()
        pace.look(now, seen.stepped, seen.printed, seen.worked)
        wish = tick(seen)
        if wish and asked is None and pid is not None:
            asked = now
            _signal(pid, signal.SIGTERM)
        late = asked is not None and now - asked > command.stop_s
        if (wish == 2 or late) and pid is not None and not end(attempt):
            return Ending("stuck", facts={"reason": stuck("the command")})
        if asked is None and hung is None and pid is not None and (overdue := pace.overdue(now)):
            hung = _end_hanging(attempt, pid, seen, overdue)
            if hung is None:
                return Ending("stuck", facts={"reason": stuck("the command")})
        wait_for_end(watched(attempt), LOOK_EVERY_S)


def _signal(pid: int, number: int) -> None:
    """To the command and its process group, which it leads."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end(attempt: Attempt, known: dict[str, int] | None = None) -> bool:
    """Kill the command and all it has started; False where it cannot be killed. known: its pids, where its folder is gone."""
    living = known or living_pids(attempt)
    nurse, pid = living.get("nurse"), living.get("trainer")
    doomed = below(nurse) if nurse is not None else [pid, *below(pid)] if pid is not None else []
    for one in doomed:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, signal.SIGKILL)
    if pid is None:
        return True
    _signal(pid, signal.SIGKILL)
    wait_for_end([pid], STUCK_S)
    return identify(pid) is None or "trainer" not in living_pids(attempt)


def _end_hanging(attempt: Attempt, pid: int, seen: Seen, overdue: tuple[float, float]) -> Json | None:
    """Write down where a silent command stands, then end it; None where it cannot be."""
    seconds, limit = overdue
    where = [waits_in(one) | {"pid": one} for one in [pid, *below(pid)][:16]]
    at = f" after step {seen.step}" if seen.step is not None else ""
    text = f"no step, no output and no sign of work for {seconds:.0f} s{at} (limit {limit:.0f} s)"
    facts: Json = {"reason": text, "step": seen.step, "processes": where}
    _write_stacks(attempt, pid)
    with contextlib.suppress(OSError):
        write_json(attempt.folder / "hang.json", facts)
    return facts if end(attempt) else None


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


def _end_group(attempt: Attempt) -> None:
    """End what is left of the command's process group after its nurse has died."""
    pid = ((read_json(attempt.folder / "rank0.json") or {}).get("identity") or {}).get("pid")
    if isinstance(pid, int) and identify(pid) is None:  # where another process has its number, none of the group is left
        _signal(pid, signal.SIGKILL)


def _ending(attempt: Attempt, run: RunFolder, hung: Json | None) -> Ending | None:
    """How the attempt ended, or None while it may still be alive."""
    seen = end_seen(attempt, run)
    if seen is None:
        return None
    if seen.get("called_off"):
        return Ending("never_started")
    code, seconds = seen.get("code"), lived_s(seen)
    hung = hung or read_json(attempt.folder / "hang.json")
    if hung is not None:
        return Ending("hang", code, seconds, hung)
    if not seen:
        _end_group(attempt)
        return Ending("vanished")
    if told := seen.get("could_not_start"):
        return Ending("refused", None, seconds, {"reason": f"it could not be started: {told}"})
    if code is None:
        return Ending("never_started")
    kind = "finished" if code == 0 else "killed" if code < 0 else "error"
    return Ending(kind, code, seconds, {"left": seen.get("left") or []})  # type: ignore[arg-type]
