"""What the user of a supervised command wants, by signals.

Ctrl-C or SIGTERM asks it to stop, a second Ctrl-C ends it; a closed terminal means nothing.
"""

from __future__ import annotations

import signal

from holdfast.terminal.run_view import Terminal


class Wishes:
    """listening: whether somebody looks on, so that the command's output is shown. asked: what is wanted from the start."""

    def __init__(self, terminal: Terminal, asked: int = 0) -> None:
        self.running, self.listening, self.terminal = False, not asked, terminal
        self._asked = asked
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, number: int, _: object) -> None:
        if not self.running:
            raise KeyboardInterrupt("nothing was started yet")
        self._asked = 2 if self._asked and number == signal.SIGINT else max(1, self._asked)

    def wish(self) -> int:
        return self._asked

    def outlive_terminal(self) -> None:
        """From now on a closed terminal costs nothing but the terminal. Under nohup the signal stays ignored."""
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._leave)

    def _leave(self, *_: object) -> None:
        self.listening = False
        self.terminal.leave()
