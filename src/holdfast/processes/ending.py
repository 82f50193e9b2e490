"""End a child for certain: kill it, wait, and say so where the kernel does not let it go. Waits no longer than that."""

from __future__ import annotations

import subprocess

STUCK_S = 30.0  # SIGKILL takes milliseconds, unless a process waits inside the kernel, for a driver or a disk


class Stuck(Exception):
    """A process that SIGKILL does not end. The message names it."""


def stuck(what: str) -> str:
    """Say that a process that should be gone is stuck."""
    return f"{what} is stuck in the kernel: it is still there {STUCK_S:.0f} s after SIGKILL"


def end(child: subprocess.Popen[bytes], what: str) -> int:
    """Kill a child and collect it; return its exit code. `what` it is, in words. Raises Stuck."""
    child.kill()
    try:
        return child.wait(STUCK_S)
    except subprocess.TimeoutExpired:
        raise Stuck(stuck(f"{what} (process {child.pid})")) from None


def end_gently(child: subprocess.Popen[bytes], within_s: float) -> None:
    """Ask a child to end, kill it where it has not done so in time, and collect it."""
    child.terminate()
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
