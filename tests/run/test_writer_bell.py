"""A bell wakes the writer, and is one process's own."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.base.wait import wait_for_end
from holdfast.run.snapshots.bell import hang_up, notify, silence


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has names for sockets that leave no file")
def test_a_bell_wakes_who_waits_and_belongs_to_one(tmp_path: Path) -> None:
    file = tmp_path / "holdfast-1234.rank0"
    notify(file)  # nobody waits yet
    bell = hang_up(file)
    assert bell is not None and hang_up(file) is None
    assert not wait_for_end([os.getpid()], 0.0, bell) and not select.select([bell], [], [], 0)[0]
    threading.Timer(0.2, notify, (file,)).start()
    assert not wait_for_end([os.getpid()], 3600, bell), "woken, and not because a process has ended"
    silence(bell)
    assert not select.select([bell], [], [], 0)[0]
    child = subprocess.Popen([sys.executable, "-c", ""])
    assert wait_for_end([child.pid], 3600, bell)
    child.wait()
    bell.close()
    assert list(tmp_path.iterdir()) == []
