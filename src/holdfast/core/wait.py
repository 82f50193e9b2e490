"""Sleep until a process ends. Standard library only, because the nurse uses it too."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable

_POLL_S = 0.02


def wait_for_end(pids: Iterable[int], timeout_s: float) -> None:
    """Return as soon as one of these processes has ended, or after `timeout_s`. Looks every 20 ms where the kernel cannot tell."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        try:
            for pid in pids:
                descriptor = os.pidfd_open(pid)
                stack.callback(os.close, descriptor)
                poll.register(descriptor, select.POLLIN)
        except ProcessLookupError:
            return
        except (AttributeError, OSError):  # macOS; Linux before 5.3; a sandbox that forbids it
            time.sleep(min(timeout_s, _POLL_S))
            return
        poll.poll(timeout_s * 1000)
