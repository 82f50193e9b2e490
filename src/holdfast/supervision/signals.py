"""What a supervisor makes of signals: Ctrl-C, SIGTERM, a closed terminal. Ends nothing by itself."""

from __future__ import annotations

import signal

from holdfast.terminal.run_view import Terminal


class StopSignals:
    """Ctrl-C and SIGTERM: before training they end the command; during it they ask for the end of the step in flight and a saved state.

    A Ctrl-C after that leaves a trainer of ours at once, which ends by itself, and ends somebody else's command (`ends`); another
    SIGTERM changes nothing. The exit code is 130 in each case. asked: what is wanted from the start: 0 go on, 1 stop, 2 at once.
    listening: whether somebody looks on, so that a command's output is shown.
    """

    def __init__(self, ends: bool = False, asked: int = 0) -> None:
        self.running, self.ends, self.asked, self.listening = False, ends, asked, not asked
        self.standing = "nothing was started yet" if ends else "nothing was trained yet; rerun the same command to start over"
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, _: object) -> None:
        if not self.running:
            raise KeyboardInterrupt(self.standing)
        again = self.asked and number == signal.SIGINT
        if again and not self.ends:
            raise KeyboardInterrupt("the trainer ends by itself after its step; rerun the same command to see what became of it")
        self.asked = 2 if again else max(1, self.asked)

    def wish(self) -> int:
        """0: go on; 1: stop; 2: at once."""
        return self.asked

    def asked_for(self) -> bool:
        """Whether the user wants to stop."""
        return self.asked > 0

    def outlive_terminal(self, terminal: Terminal) -> None:
        """From now on a closed terminal (SIGHUP) costs nothing but the terminal. Under nohup the signal stays ignored."""

        def leave(*_: object) -> None:
            self.listening = False
            terminal.leave()

        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, leave)
