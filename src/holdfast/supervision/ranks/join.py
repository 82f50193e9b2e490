"""`holdfast train` where another launcher started it beside others, and it is not the first: it starts this rank's trainer, whenever the
first one starts an attempt, and ends as that one does. Decides nothing.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable

from holdfast.base.child import trainer_command, with_env
from holdfast.base.errors import AGAIN, DONE, GAVE_UP, INTERRUPTED
from holdfast.base.files import Json, read_json, write_json
from holdfast.base.locks import taken
from holdfast.base.safe_open import open_log
from holdfast.base.wait import wait_for_end
from holdfast.processes.rank_info import RankInfo
from holdfast.run.attempt import closed, is_closed, read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.outcomes import kind_by_code

_LOOK_S = 0.2
_FIRST_S = 1800.0  # for the first rank to look at machine, model and rows
_AWAY_S = 15.0  # without a supervisor before it counts as gone: locks of other machines are seen late
_STACKS_S = 2.0
_KILL_S = 20.0  # for a trainer that was asked to stop; its state is the first rank's


class Follower:
    """One rank beside the first, on whatever machine; both see one run folder."""

    def __init__(self, run: RunFolder, rank_info: RankInfo, stop: Callable[[], bool], say: Callable[[str], None]) -> None:
        self.run, self.rank_info, self.stop, self.say = run, rank_info, stop, say
        self.after = 0  # the newest attempt this rank had a part in

    def to_end(self) -> int:
        """Join attempts to the run's end; return its exit code, or AGAIN where another start would go on with it."""
        while True:
            number = self._next()
            if number is None:
                return self._over()
            code = self._train(number)
            elsewhere, well = kind_by_code(code) == "elsewhere", code in (DONE, INTERRUPTED)
            self.after = number if not elsewhere else self.after
            if self.stop():
                return code if well else INTERRUPTED
            if not elsewhere and not self._goes_on(number):  # the first rank may take steps back, and go on
                return code if well else self._over()

    def _next(self) -> int | None:
        """Wait for the attempt to join; return its number, None where the first rank has left, or never comes."""
        limit_s = _AWAY_S if self.after or self._finished() else _FIRST_S
        seen = time.monotonic()
        while not self.stop() and time.monotonic() - seen < limit_s:
            number = max(self.run.attempts(), default=0)
            if number > self.after and self._is_open(number):
                return number
            if taken(self.run.supervisor_lock):
                seen, limit_s = time.monotonic(), _AWAY_S
            time.sleep(_LOOK_S)
        return None

    def _is_open(self, number: int) -> bool:
        """True if an attempt of as many ranks has begun and not ended."""
        folder = self.run.attempt(number)
        orders = read_launch_spec(folder)
        begun = orders is not None and orders.facts.get("ranks") == self.rank_info.size
        return begun and not is_closed(folder) and not (folder / "ending.json").exists()

    def _train(self, number: int) -> int:
        """Train as this rank in an attempt; return the exit code."""
        folder = self.run.attempt(number)
        orders = read_launch_spec(folder)
        environment = with_env(os.environ, (orders.facts["env"] if orders else {}) | self.rank_info.environment())
        with open_log(folder / f"rank{self.rank_info.number}.log") as log:
            argv = trainer_command("join", self.run.path, number)
            child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.say(f"rank {self.rank_info.number} of {self.rank_info.size} on {platform.node()}: attempt {number}, process {child.pid}")
        asked: float | None = None
        while (code := child.poll()) is None:
            if self.stop() and asked is None:
                asked = time.monotonic()
                child.send_signal(signal.SIGTERM)
            if asked is None and is_closed(folder):  # it hangs: the others were ended without it
                asked = time.monotonic() - _KILL_S + _STACKS_S
                child.send_signal(signal.SIGUSR1)
            if asked is not None and time.monotonic() - asked > _KILL_S:
                child.kill()
            wait_for_end([child.pid], _LOOK_S)
        if kind_by_code(code) not in ("finished", "interrupted", "elsewhere"):
            write_json(folder / f"ended{self.rank_info.number}.json", {"rank": self.rank_info.number, "code": code}, durable=False)
        return code

    def _goes_on(self, number: int) -> bool:
        """True if another attempt follows `number`, once the first rank has decided; False where it has left."""
        seen = time.monotonic()
        while not self.stop() and time.monotonic() - seen < _AWAY_S:
            if found := closed(self.run.attempt(number)):
                return found.goes_on
            if taken(self.run.supervisor_lock):
                seen = time.monotonic()
            time.sleep(_LOOK_S)
        return False

    def _over(self) -> int:
        """Return the exit code that the run ended with, as far as it is known."""
        if self.stop():
            return INTERRUPTED
        status = self._summary().get("status")
        return {"finished": DONE, "gave_up": GAVE_UP, "interrupted": INTERRUPTED}.get(str(status), AGAIN)

    def _finished(self) -> bool:
        return self._summary().get("status") == "finished"

    def _summary(self) -> Json:
        return read_json(self.run.summary_file) or {}
