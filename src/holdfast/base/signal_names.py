"""The name of the signal that ended a process, in words. Standard library only."""

from __future__ import annotations

import signal


def killed_by(number: int) -> str:
    """Name a signal by its number (negative as in an exit code, too): killed by SIGKILL; killed by signal 40."""
    try:
        return f"killed by {signal.Signals(abs(number)).name}"
    except ValueError:  # most real-time signals
        return f"killed by signal {abs(number)}"
