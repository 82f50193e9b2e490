"""Run each probe in a forked child with deadlines the kernel keeps: a crash or a hang is a result. Uses no device itself."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import torch

from holdfast.base.signal_names import killed_by
from holdfast.callback.first_calls import make_first_calls
from holdfast.trainer.jobs.probes import attention, collective, compiled, fused, matmul, memory, quantised, speed, writing

Probe = Callable[[], dict[str, Any]]
_GRACE_S = 5


def probe_functions(folder: Path, deadline_s: int) -> int:
    """Print {name: {outcome: ok/absent/wrong/error/crashed/hung, ...facts}} for all probes as one line of JSON."""
    make_first_calls()  # for all children: they open no region of several threads, which a fork would not survive
    print(orjson.dumps(run_probes(standard_probes(folder), deadline_s)).decode())
    return 0


def standard_probes(folder: Path) -> dict[str, Probe]:
    return {
        "matmul": lambda: matmul.probe(_device()),
        "attention": lambda: attention.probe(_device()),
        "fused": lambda: fused.probe(_device()),
        "memory": lambda: memory.probe(_device()),
        "speed": lambda: speed.probe(_device()),
        "compiled": lambda: compiled.probe(_device()),
        "quantised": lambda: quantised.probe(_device()),
        "collective": lambda: collective.probe(_device()),
        "writing": lambda: writing.probe(folder),
    }


def run_probes(probes: dict[str, Probe], deadline_s: int) -> dict[str, Any]:
    return {name: _in_a_child(probe, deadline_s) for name, probe in probes.items()}


def _device() -> torch.device:
    """Return the device, in the child: a parent that has touched it could not fork."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _in_a_child(probe: Probe, deadline_s: int) -> dict[str, Any]:
    reading, writing_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(probe, writing_end, deadline_s)
    os.close(writing_end)
    status = _ending(pid, deadline_s + _GRACE_S)
    with open(reading, "rb") as pipe:
        answer = b"" if status is None else pipe.read()
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGALRM, signal.SIGXCPU, signal.SIGKILL)):
        return {"outcome": "hung", "detail": f"no answer within {deadline_s} s"}
    if os.WIFSIGNALED(status):
        return {"outcome": "crashed", "detail": killed_by(os.WTERMSIG(status))}
    with contextlib.suppress(orjson.JSONDecodeError):
        found = orjson.loads(answer)
        if isinstance(found, dict):
            return found
    return {"outcome": "crashed", "detail": f"ended with exit code {os.WEXITSTATUS(status)} and no answer"}


def _child(probe: Probe, answer: int, deadline_s: int) -> None:
    """Run the probe and exit; never returns. Kernel limits on time and CPU time hold whatever the probe is stuck in."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(deadline_s)
    limit = deadline_s * (os.cpu_count() or 1)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        found = probe()
    except (RuntimeError, ValueError, TypeError, AttributeError, ImportError, OSError, MemoryError):
        last = traceback.format_exc().strip().splitlines()[-1]
        found = {"outcome": "error", "detail": last[:400]}
    os.write(answer, orjson.dumps(found))
    os._exit(0)


def _ending(pid: int, patience_s: float) -> int | None:
    """Wait for the child; return its status, None for one that cannot even be killed, which is left behind."""
    for deadline in (time.monotonic() + patience_s, time.monotonic() + patience_s + 1):
        while time.monotonic() < deadline:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return status
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
    return None
