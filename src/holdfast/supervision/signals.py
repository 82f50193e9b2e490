"""What a supervisor makes of signals: Ctrl-C, SIGTERM, a closed terminal. Ends nothing by itself."""

from __future__ import annotations

import signal
from collections.abc import Callable

from holdfast.terminal.run_view import Terminal


class StopSignals:
    """Ctrl-C and SIGTERM: before training they end the command; during it they ask for the end of the step in flight and a saved state.

    A Ctrl-C after that leaves at once; another SIGTERM changes nothing. The exit code is 130 in each case.
    """

    standing = "nothing was trained yet; rerun the same command to start over"

    def __init__(self, asked: bool = False) -> None:
        self.running, self.asked = False, asked
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, _: object) -> None:
        if not self.running:
            raise KeyboardInterrupt(self.standing)
        if self.asked and number == signal.SIGINT:
            self._insist()
        self.asked = True

    def _insist(self) -> None:
        raise KeyboardInterrupt("the trainer ends by itself after its step; rerun the same command to see what became of it")

    def asked_for(self) -> bool:
        return self.asked


class CommandSignals(StopSignals):
    """The same above somebody else's command: it is asked to stop, and ended by a second Ctrl-C.

    listening: whether somebody looks on, so that the command's output is shown.
    """

    standing = "nothing was started yet"

    def __init__(self, terminal: Terminal, asked: bool = False) -> None:
        super().__init__(asked)
        self.terminal, self.listening, self.insisted = terminal, not asked, False

    def _insist(self) -> None:
        self.insisted = True

    def wish(self) -> int:
        """0: go on, 1: stop, 2: at once."""
        return 2 if self.insisted else int(self.asked)

    def leave(self) -> None:
        """Nobody looks on any more."""
        self.listening = False
        self.terminal.leave()


def outlive_terminal(leave: Callable[[], object]) -> None:
    """From now on a closed terminal (SIGHUP) costs nothing but the terminal, which is left. Under nohup the signal stays ignored."""
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: leave())
