"""The first SIGTERM ends what comes before training, also in a call that Python does not come back from."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from conftest import wait_until
from holdfast.base.identity import identify

_BUSY = """
import hashlib, subprocess, sys
from holdfast.supervision import signals as module
module._PATIENCE_S = 0.3
signals = module.StopSignals()
signals.running = sys.argv[1] == "running"
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
hashlib.pbkdf2_hmac("sha256", b"a", b"b", int(sys.argv[2]))
child.kill()
print("came back", signals.asked, flush=True)
"""


def started(*arguments: object) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", _BUSY, *map(str, arguments)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    return child, int(child.stdout.readline())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_a_call_that_does_not_come_back(number: signal.Signals) -> None:
    child, below = started("preparing", 2**31 - 1)  # hours
    child.send_signal(number)
    _, said = child.communicate()
    assert child.returncode == 130 and "interrupted; nothing was trained yet" in said and "Traceback" not in said
    wait_until(lambda: identify(below) is None)


def test_while_a_run_goes_on_it_is_waited_for() -> None:
    child, _ = started("running", 1_500_000)
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate()
    assert child.returncode == 0 and said == "came back 1\n"
