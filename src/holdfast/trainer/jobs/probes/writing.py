"""How fast the run folder's disk and /dev/shm take bytes, flushed."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

_BYTES, _BLOCK_BYTES = 32 << 20, 4 << 20


def probe(folder: Path) -> dict[str, Any]:
    """Measure writing: {outcome, bytes_per_second: {path: rate}}; a place that cannot be written is left out."""
    rates = {str(place): rate for place in (folder, Path("/dev/shm")) if (rate := _rate(place)) is not None}
    return {"outcome": "ok", "bytes_per_second": rates}


def _rate(folder: Path) -> int | None:
    block = os.urandom(_BLOCK_BYTES)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as handle:
            begun = time.perf_counter()
            for _ in range(_BYTES // _BLOCK_BYTES):
                handle.write(block)
            os.fsync(handle.fileno())
            return int(_BYTES / (time.perf_counter() - begun))
    except OSError:
        return None
