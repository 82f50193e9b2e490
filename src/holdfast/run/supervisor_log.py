"""The file in which a supervisor writes what it says where nobody reads its terminal."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from holdfast.base.safe_open import log_descriptor


def supervisor_log(log: Path, why: str) -> int:
    """Open a supervisor's log at its end, with a line that says since when and why it is written; a descriptor."""
    descriptor = log_descriptor(log)
    with contextlib.suppress(OSError):  # a full disk
        os.write(descriptor, f"--- {time.strftime('%F %T')} {why}\n".encode())
    return descriptor
