"""What is told to the supervisor from inside a training process: a pulse, events, an account of its own end. Standard library only."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import mmap
import os
import signal
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.callback.standby import note

ATTEMPT, SNAPSHOT = "HOLDFAST_ATTEMPT", "HOLDFAST_SNAPSHOT"
STEP = "step.bin"  # in the attempt's folder: the newest step, each step
_COUNT = struct.Struct("<q")
_SHARE = 0.01  # of the time, the most that the pulse may cost


class Account:
    """The files of one attempt. Without a supervisor (no HOLDFAST_ATTEMPT) nothing is written, and events go to standard error.

    What a disk does not take is not told, and ends nothing.
    """

    def __init__(self) -> None:
        place = os.environ.get(ATTEMPT)
        self.folder = Path(place) if place and Path(place).is_dir() and os.environ.get("RANK", "0") == "0" else None
        self.facts: dict[str, Any] = {}
        self._written = self._cost = 0.0
        self._step: mmap.mmap | None = None
        self._noted = False  # what was imported
        self.stacks = _register_stacks() if self.folder is not None else False

    def pulse(self, at_once: bool = False, **facts: Any) -> None:
        """Publish how far it is, as often as that costs next to nothing; its step each time, where a death cannot take it."""
        self.facts |= facts
        now = time.monotonic()
        with contextlib.suppress(OSError):
            self._count(facts.get("step"))
        if self.folder is None or (now - self._written < self._cost / _SHARE and not at_once):
            return
        with contextlib.suppress(OSError):
            _write(self.folder / "pulse.json", self.facts | {"stacks": self.stacks, "time": time.time()})
        self._written = time.monotonic()
        self._cost = self._written - now

    def _count(self, step: int | None) -> None:
        """Write the newest step to a page of a file that is mapped: no call to the system, and it outlives the process."""
        if self.folder is None or step is None:
            return
        if self._step is None:
            with open(self.folder / STEP, "w+b") as handle:
                handle.write(bytes(_COUNT.size))
                handle.flush()
                self._step = mmap.mmap(handle.fileno(), _COUNT.size)
        elif not self._noted:  # a step is done
            self._noted = True
            with contextlib.suppress(Exception):  # a restart takes longer then
                note(self.folder)
        _COUNT.pack_into(self._step, 0, step)

    def event(self, kind: str, text: str, **facts: Any) -> None:
        """Record something a person should know."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a terminal that is gone, a stream that is closed, or none
            print(f"holdfast: {text}", file=sys.stderr, flush=True)
        if self.folder is not None:
            with contextlib.suppress(OSError), open(self.folder / "inside.jsonl", "a", encoding="utf-8") as handle:
                handle.write(json.dumps({"event": kind, "text": text} | facts) + "\n")

    def ends(self, **facts: Any) -> None:
        """Record why the process is about to end by a decision of ours."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                _write(self.folder / "account.json", facts)


def step_counted(attempt: Path) -> int | None:
    """Return the newest step that an attempt told; None where it told none."""
    try:
        return int(_COUNT.unpack((attempt / STEP).read_bytes())[0])
    except (OSError, struct.error):
        return None


def _register_stacks() -> bool:
    """Register SIGUSR1 to print all stacks, where nobody uses it for something else."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGUSR1) != signal.SIG_DFL:
        return False
    try:
        faulthandler.register(signal.SIGUSR1, chain=False)
    except (AttributeError, ValueError, OSError):  # an output without a descriptor
        return False
    return True


def _write(file: Path, value: dict[str, Any]) -> None:
    temporary = file.with_suffix(f".{os.getpid()}.tmp")
    told = {name: one if not isinstance(one, float) or math.isfinite(one) else None for name, one in value.items()}  # no NaN in JSON
    temporary.write_text(json.dumps(told), encoding="utf-8")
    temporary.replace(file)
