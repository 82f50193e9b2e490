"""What a supervisor makes of signals: Ctrl-C, SIGTERM, a closed terminal. Ends nothing by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

from holdfast.base.errors import INTERRUPTED
from holdfast.data.workers.interrupts import Interrupts
from holdfast.processes.tree import below
from holdfast.report.audience import RunAudience
from holdfast.supervision import sigterm

_PATIENCE_S = 3.0  # for a call into a library to come back


class StopSignals:
    """Ctrl-C and SIGTERM: before training they end the command; during it they ask for the end of the step in flight and a saved state.

    A Ctrl-C after that leaves a trainer of ours at once, which ends by itself, and ends somebody else's command (`ends`); another
    SIGTERM changes nothing. The exit code is 130 in each case. asked: what is wanted from the start: 0 go on, 1 stop, 2 at once.
    listening: whether somebody looks on, so that a command's output is shown.
    """

    _newest: StopSignals | None = None

    def __init__(self, ends: bool = False, asked: int = 0) -> None:
        self.running, self.ends, self.asked, self.listening = False, ends, asked, not asked
        self.standing = "nothing was started yet" if ends else "nothing was trained yet; rerun the same command to start over"
        self._heard, self._came = -Interrupts.count, 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        self._watch()

    def _watch(self) -> None:
        """End the command in a thread where a signal is not heard: Python hears none while a library (a tokenizer) is busy.

        One thread serves the newest object; signals that somebody else's handler hears by now, or a forked process, are none of ours.
        """
        StopSignals._newest = self
        sent, told = os.pipe()
        os.set_blocking(told, False)
        before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        if before != -1 and not sigterm.is_ours(before):  # a thread's of this class, or a loop's, as in a notebook
            signal.set_wakeup_fd(before)
            os.close(sent)
            os.close(told)
            return
        threading.Thread(target=_end_unheard, args=(sent,), daemon=True).start()
        sigterm.forget_in_forks()

    def unheard(self, number: int) -> bool:
        """Return whether a signal that came _PATIENCE_S ago should have ended the command, and its handler was not called."""
        return self.hears(number) and self._heard + Interrupts.count < self._came and not self.running

    def hears(self, number: int) -> bool:
        """True if nobody else hears this signal now."""
        return signal.getsignal(number) == self._ask

    def _ask(self, number: int, _: object) -> None:
        self._heard += 1
        if not self.running:
            raise KeyboardInterrupt(self.standing)
        again = self.asked and number == signal.SIGINT
        if again and not self.ends:
            raise KeyboardInterrupt("the trainer ends by itself after its step; rerun the same command to see what became of it")
        self.asked = 2 if again else max(1, self.asked)

    def wish(self) -> int:
        """Return the user's wish. 0: go on; 1: stop; 2: at once."""
        return self.asked

    def asked_for(self) -> bool:
        """True if the user wants to stop."""
        return self.asked > 0

    def outlive_terminal(self, audience: RunAudience) -> None:
        """Ignore a closed terminal (SIGHUP) from now on: it costs nothing but the terminal. Under nohup the signal stays ignored."""

        def leave(*_: object) -> None:
            self.listening = False
            audience.leave()

        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, leave)


def _end_unheard(sent: int) -> None:
    """Read the numbers of signals as they come, and leave where one is not heard."""
    while number := os.read(sent, 1):
        stop = StopSignals._newest
        if stop is None or number[0] not in (signal.SIGINT, signal.SIGTERM) or not stop.hears(number[0]):
            continue
        stop._came += 1
        time.sleep(_PATIENCE_S)
        if stop.unheard(number[0]):
            _leave(stop.standing)


def _leave(standing: str) -> None:
    """End this process and those it has started, at once."""
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        print(f"\nholdfast: interrupted; {standing}", file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)
