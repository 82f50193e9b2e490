"""Give a prepared run to a supervisor in a session of its own, and wait until it is under way. Prepares and supervises nothing."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import time
from typing import BinaryIO

from holdfast.base.child import module_command
from holdfast.base.errors import BLOCKED, DONE, INTERRUPTED, Stop
from holdfast.base.files import Json
from holdfast.base.safe_open import supervisor_log
from holdfast.base.signal_names import killed_by
from holdfast.report.audience import RunAudience
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.supervision.evidence import tail
from holdfast.supervision.preparation.lock import HELD_LOCK
from holdfast.supervision.runs import entry
from holdfast.supervision.signals import StopSignals
from holdfast.supervision.standing import look

_POLL_S = 0.1
_FAREWELL = re.compile(r"^holdfast: ", re.M)


def detach(run: RunFolder, lock: int, arguments: list[str], audience: RunAudience, stop: StopSignals) -> tuple[int, Json]:
    """Start `holdfast train` with `arguments` on its own, with the run's `lock`; the run's entry in `status` once a new step is committed.

    Raises Stop with the exit code and the words of a supervisor that ended before.
    """
    audience.fall_back_on(None)  # the log is the other's now
    before = run.committed()
    descriptor = supervisor_log(run.supervisor_log, shlex.join(["holdfast", *arguments]))
    command = module_command("holdfast", *arguments)
    with os.fdopen(descriptor, "ab") as log, run.supervisor_log.open("rb") as said:
        said.seek(0, 2)
        environment = os.environ | {HELD_LOCK: str(lock)}
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True, pass_fds=(lock,)
        )
        name = shown(run.path)
        stop.standing = f"process {child.pid} goes on with the run in the background; stop it: holdfast stop {name}"
        while child.poll() is None and run.committed() == before:
            _pass_on(said, audience)
            time.sleep(_POLL_S)
        _pass_on(said, audience)
    if child.returncode is not None:
        return _ended_early(run, child.returncode)
    audience.say(f"under way: step {run.committed()} is done; process {child.pid} on {platform.node()} supervises it")
    audience.say(f"  follow    holdfast attach {name}\n  status    holdfast status {name}\n  stop      holdfast stop {name}")
    audience.say(f"  its log   {shown(run.supervisor_log)}")
    return DONE, entry(look(run))


def _pass_on(said: BinaryIO, audience: RunAudience) -> None:
    """Show what the supervisor wrote to its log since the last look; its own last words are left to the error it ended with."""
    text = said.read().decode(errors="replace")
    if text := _FAREWELL.split(text)[0].rstrip("\n"):
        audience.say(text)


def _ended_early(run: RunFolder, code: int) -> tuple[int, Json]:
    """Report a supervisor that ended before a new step: none was left to do, somebody stopped it, or it failed and said why."""
    standing = look(run)
    if code in (DONE, INTERRUPTED):
        return code, standing.summary or entry(standing)
    if code < 0:
        text = f"the supervisor was {killed_by(code)} before a new step was done"
        raise Stop(BLOCKED, text, f"rerun the same command to resume; its log: {run.supervisor_log}")
    message, _, hint = _FAREWELL.split("\n".join(tail(run.supervisor_log)))[-1].partition("\n  -> ")
    raise Stop(code, message, hint, standing.summary if standing.summary.get("status") == "gave_up" else None)
