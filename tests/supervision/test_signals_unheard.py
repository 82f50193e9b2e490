"""The first SIGTERM ends what comes before training, also in a call that Python does not come back from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.base.identity import identify

_BUSY = """
import hashlib, subprocess, sys
from holdfast.supervision import signals as module
module._PATIENCE_S = 0.3
signals = module.StopSignals()
signals.running = sys.argv[1] == "running"
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
hashlib.pbkdf2_hmac("sha256", b"a", b"b", int(sys.argv[2]))
child.kill()
print("came back", signals.asked, flush=True)
"""


def started(*arguments: object) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", _BUSY, *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    below, before = int(child.stdout.readline()), computed(child.pid)
    wait_until(lambda: computed(child.pid) >= before + 0.2)  # it is in the call: nothing else of it computes for so long
    return child, below


def computed(pid: int) -> float:
    """Return the seconds of processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_a_call_that_does_not_come_back(number: signal.Signals) -> None:
    child, below = started("preparing", 2**31 - 1)  # hours
    child.send_signal(number)
    _, said = child.communicate()
    assert child.returncode == 130 and "interrupted; nothing was trained yet" in said and "Traceback" not in said
    wait_until(lambda: identify(below) is None)


def test_while_a_run_goes_on_it_is_waited_for() -> None:
    child, _ = started("running", 5_000_000)
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate()
    assert child.returncode == 0 and said == "came back 1\n"


_OTHERS = """
import contextlib, os, signal, sys, time
from holdfast.data.workers.interrupts import Interrupts
from holdfast.supervision import signals as module
module._PATIENCE_S = 0.1
stop = module.StopSignals()
if sys.argv[1] == "handler":
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.kill(os.getpid(), signal.SIGTERM)
elif sys.argv[1] == "interrupts":
    with contextlib.suppress(KeyboardInterrupt), Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
elif sys.argv[1] == "newer":
    module.StopSignals().running = True
    os.kill(os.getpid(), signal.SIGTERM)
else:
    if not (child := os.fork()):
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1000)
    os.waitpid(child, 0)
time.sleep(0.5)
print("lives")
"""


@pytest.mark.parametrize("heard_by", ["handler", "interrupts", "newer", "fork"])
def test_a_signal_that_somebody_else_hears_ends_nothing(heard_by: str) -> None:
    done = subprocess.run([sys.executable, "-c", _OTHERS, heard_by], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "lives\n"), done.stderr
