"""What a supervisor makes of signals: Ctrl-C, SIGTERM, a closed terminal. Ends nothing by itself."""

from __future__ import annotations

import signal

from holdfast.terminal.run_view import Terminal


class StopSignals:
    """Ctrl-C and SIGTERM: before training they end the command; during it they ask for the end of the step in flight and a saved state.

    A Ctrl-C after that leaves at once; another SIGTERM changes nothing. The exit code is 130 in each case.
    """

    def __init__(self) -> None:
        self.training = self.asked = False
        self.standing = "nothing was trained yet; rerun the same command to start over"
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, _: object) -> None:
        if not self.training:
            raise KeyboardInterrupt(self.standing)
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt("the trainer ends by itself after its step; rerun the same command to see what became of it")
        self.asked = True

    def asked_for(self) -> bool:
        return self.asked


def outlive_terminal(terminal: Terminal) -> None:
    """From now on a closed terminal (SIGHUP) costs nothing but the terminal. Under nohup the signal stays ignored."""
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: terminal.leave())
