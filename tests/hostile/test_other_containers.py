"""Containers that share /dev/shm, and those in which it cannot be written: real mount namespaces, skipped where none can be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast as package
from conftest import events
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import abandoned, sweep

SOURCE = str(Path(package.__file__).parents[1])


def elsewhere(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a shell script in a mount namespace of its own, as a container has one; `$PYTHON` and the package are there."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of its own needs root")
    command = ["unshare", "-m", "sh", "-ec", script, "sh", *map(str, arguments)]
    surroundings = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": SOURCE}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)


SWEEPS = "from pathlib import Path; import sys; from holdfast.run.snapshots.memory_places import sweep; print(sweep(Path(sys.argv[1])))"


def test_another_container_leaves_the_snapshots_of_runs_that_it_cannot_see(tmp_path: Path) -> None:
    home, shared = tmp_path / "home", tmp_path / "shm"
    (home / "runs" / "mine").mkdir(parents=True)
    shared.mkdir()
    MemoryFile.create(shared / "holdfast-a.rank0", home / "runs" / "mine", 64, 64).memory.close()
    hidden = f'mount -t tmpfs tmpfs "$1"; mkdir -p "$1/runs"; "$PYTHON" -c "{SWEEPS}" "$2"'
    done = elsewhere(hidden, home, shared)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert (shared / "holdfast-a.rank0").exists()
    shutil.rmtree(home / "runs" / "mine")
    assert sweep(shared) == [shared / "holdfast-a.rank0"], "and where it was made, it is seen to be left over"


def test_a_disk_that_is_not_mounted_is_no_deleted_run(tmp_path: Path) -> None:
    MemoryFile.create(tmp_path / "holdfast-a.rank0", tmp_path / "disk" / "runs" / "mine", 64, 64).memory.close()
    assert abandoned(tmp_path) == {}


@pytest.mark.long
def test_a_run_finishes_where_shared_memory_cannot_be_written(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(train={"steps": 3})
    script = 'mount --bind /dev/shm /dev/shm; mount -o remount,ro,bind /dev/shm; "$PYTHON" -m holdfast train "$1" --run "$2"'
    done = elsewhere(script, config, tmp_path / "run")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    assert events(tmp_path / "run", "final_evaluation_ended")
