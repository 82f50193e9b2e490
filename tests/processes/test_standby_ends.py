"""A standby is let end with its shim, however both are: what is stopped keeps no memory behind the run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import wait_until
from holdfast.processes import standby
from holdfast.processes.standby import WaitingShim
from holdfast.processes.tree import below, waits_in

# as a shim is: a child of its own, which ends with the pipe, as the shim does
SHIM = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"], stdin=subprocess.PIPE)
sys.stdin.read()
child.stdin.close()
if sys.argv[1] == "waits":
    child.wait()
"""


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("how", ["waits", "goes"])
@pytest.mark.parametrize("stopped", [(), ("shim",), ("process",), ("shim", "process")], ids=lambda them: " and ".join(them) or "none")
def test_nothing_of_a_standby_is_left(
    stopped: tuple[str, ...], how: str, given: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where one is stopped, no attempt is given to it: the next one would wait for it until the hang timeout."""
    monkeypatch.setattr(standby, "_ENDS_S", 1.0)
    shim = subprocess.Popen([sys.executable, "-c", SHIM, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert shim.stdout is not None and shim.stdout.readline() == b"up\n"
    (process,) = below(shim.pid)
    for pid in [{"shim": shim.pid, "process": process}[name] for name in stopped]:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: waits_in(pid).get("state") == "T")  # the signal is on its way when kill returns
    waiting = WaitingShim()
    waiting.shim = shim
    try:
        if given and stopped:
            assert waiting.hand_over(tmp_path) is None
        else:
            waiting.discard()
        wait_until(lambda: waits_in(process).get("state", "Z") in ("Z", "X"), 60)
        assert shim.poll() is not None and not waiting.waits()
    finally:
        shim.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
