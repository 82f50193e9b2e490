"""The training step on a card that is not there: real code and real shapes, no data (FakeTensorMode). Each trace is a process of its own.

A torch built for the CPU aborts when autograd meets a tensor on `cuda`; the simulated card's library gives it the device's guard and hooks.
It has to be loaded before torch, so what uses it runs apart: `run`. What is seen: launches, copies, waits, types, bytes. What is not:
results, real kernels, time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from simulated import card
from support import forked

FOLDER = Path(__file__).parent


def run(file: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a Python file that imports `faked.card` before torch; its output is text."""
    paths = os.pathsep.join([str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = {"PYTHONPATH": paths, forked.FORK: str(card.library())}
    command = [sys.executable, str(file), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | told)
