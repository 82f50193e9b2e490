"""Send a signal to a process that a run folder names, once the kernel says that it holds the run's lock. Decides nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from holdfast.base.identity import Identity, alive
from holdfast.base.locks import holds


def signal_holder(identity: Identity, lock: Path, number: signal.Signals) -> bool:
    """Send a signal to a process, if it is alive and holds `lock`; return whether it was sent. Raises PermissionError.

    What a folder says of processes may be wrong, or made up: a signal goes to none that has nothing to do with the run.
    """
    with contextlib.ExitStack() as stack:
        try:  # while its descriptor is open, the pid becomes no other process's
            descriptor = os.pidfd_open(identity["pid"])
            stack.callback(os.close, descriptor)
        except ProcessLookupError:
            return False
        except (AttributeError, OSError):  # macOS; Linux before 5.3; a sandbox that forbids it
            descriptor = None
        if not alive(identity) or not holds(identity["pid"], lock):
            return False
        try:
            os.kill(identity["pid"], number) if descriptor is None else signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        return True
