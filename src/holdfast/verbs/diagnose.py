"""`holdfast diagnose LOG`: name what ended a run, from any trainer's log or a run folder of holdfast's own."""

from __future__ import annotations

import re
import signal

from holdfast.core.errors import USAGE, Stop


def exit_code(text: str) -> int:
    """An exit code as people write it: 1, 137, -9, SIGKILL, 139 (SIGSEGV). Negative for a signal. Raises Stop(2)."""
    if match := re.search(r"-?\d+", text):
        number = int(match[0])
        return -number if re.match(r"SIG[A-Z]+\b", text.strip()) else number
    name = text.strip().upper()
    if name in signal.Signals.__members__:
        return -signal.Signals[name]
    raise Stop(USAGE, f"--exit-code {text}: not an exit code", "for example --exit-code 137, --exit-code=-9 or --exit-code SIGKILL")
