"""Two real users on one machine: one trains, the other does what the kernel lets it do in the places they share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest
import yaml

import holdfast as package
from conftest import make_rows, write_rows

SOURCE = str(Path(package.__file__).parents[1])
VICTIM, ATTACKER = 2001, 2002

ATTACK = """
import fcntl, os, sys, time
shared, run = sys.argv[1], sys.argv[2]
done = set()
def attempt(name, do):
    try:
        do()
        done.add(name)
    except OSError:
        pass
os.mkfifo(f"{shared}/holdfast-zz.rank0"); os.chmod(f"{shared}/holdfast-zz.rank0", 0o666)
os.symlink("/etc/passwd", f"{shared}/holdfast-yy.rank0")
open(f"{shared}/holdfast-xx.rank0", "wb").write(b"HOLDFAST" * 4096)
while not os.path.exists(sys.argv[3]):
    for name in os.listdir(shared):
        if name.startswith("holdfast-") and name[9:11] not in ("zz", "yy", "xx"):
            path = f"{shared}/{name}"
            attempt("read a snapshot", lambda: open(path, "rb").read(1))
            attempt("wrote a snapshot", lambda: open(path, "r+b").write(b"x"))
            attempt("removed a snapshot", lambda: os.unlink(path))
            attempt("truncated a snapshot", lambda: os.truncate(path, 0))
    for name in ("supervisor.lock", "trainer.lock", "writer.lock"):
        def lock():
            fcntl.flock(os.open(f"{run}/{name}", os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
        attempt("locked " + name, lock)
    attempt("listed the run", lambda: os.listdir(run))
    attempt("wrote into the run", lambda: open(f"{run}/summary.json", "w"))
    time.sleep(0.002)
print(sorted(done))
"""


REACHABLE = """
mkdir -p "$SPARE"; mount --bind "$PREFIX" "$SPARE"
mount -t tmpfs -o mode=755 tmpfs "$BLOCKED"; mkdir -p "$PREFIX"; mount --bind "$SPARE" "$PREFIX"
"""


def as_user(uid: int, *command: object, home: Path) -> list[str]:
    """The command as another user, in a mount namespace in which this Python is reachable where it lies below a closed folder."""
    prefix = Path(sys.base_prefix).resolve()
    closed = next((folder for folder in reversed(prefix.parents) if not folder.stat().st_mode & 0o001), None)
    names = {"SPARE": home / ".python", "PREFIX": prefix, "BLOCKED": closed}
    setting = [f"{name}={value}" for name, value in names.items()]
    script = (REACHABLE if closed else "") + 'exec "$@"'
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", f"HOME={home}", *map(str, command)]
    return ["env", *setting, "unshare", "-m", "sh", "-ec", script, "sh", *user]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own is not."""
    if os.geteuid() != 0 or None in (shutil.which("setpriv"), shutil.which("unshare")):
        pytest.skip("only root can act as two other users, by setpriv and unshare")
    folder = Path(mkdtemp(prefix="holdfast-users-"))
    folder.chmod(0o755)
    tried = subprocess.run(as_user(VICTIM, sys.executable, "-c", "import torch", home=folder), capture_output=True, check=False)
    if tried.returncode:
        shutil.rmtree(folder)
        pytest.skip("this Python is in a folder that other users cannot read")
    yield folder
    shutil.rmtree(folder)


def train(folder: Path, name: str, shared: Path) -> subprocess.Popen[str]:
    home = folder / "victim"
    tree = {
        "model": "tiny",
        "data": {"files": [str(home / "rows.jsonl")]},
        "adapter": {"r": 2},
        "train": {"steps": 12, "effective_batch": 4, "max_tokens": 96, "threads": 1},
        "save": {"every": 3, "snapshot_dir": str(shared)},
        "faults": [{"name": "dies", "when": {"step": 6, "attempt": 1}, "effect": "kill"}],
    }
    (home / f"{name}.yaml").write_text(yaml.safe_dump(tree))
    os.chown(home / f"{name}.yaml", VICTIM, VICTIM)
    command = [sys.executable, "-m", "holdfast", "train", home / f"{name}.yaml", "--run", home / name, "--json"]
    environment = {**os.environ, "PYTHONPATH": SOURCE, "HOLDFAST_CACHE": str(home / "cache")}
    return subprocess.Popen(
        as_user(VICTIM, *command, home=home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=home
    )


@pytest.mark.long
def test_no_attack_of_another_user_works_and_the_run_ends_with_the_same_bits(place: Path) -> None:
    home, shared, calm = place / "victim", place / "shared", place / "calm"
    for folder in (home, shared, calm):
        folder.mkdir()
    os.chown(home, VICTIM, VICTIM)
    for folder in (shared, calm):
        folder.chmod(0o1777)  # as /dev/shm is
    write_rows(home / "rows.jsonl", make_rows(40))
    os.chown(home / "rows.jsonl", VICTIM, VICTIM)
    undisturbed, told = train(place, "calm", calm).communicate()
    attacker = subprocess.Popen(
        as_user(ATTACKER, sys.executable, "-c", ATTACK, shared, home / "attacked", place / "over", home=place),
        stdout=subprocess.PIPE,
        text=True,
    )
    time.sleep(0.5)
    attacked, said = train(place, "attacked", shared).communicate()
    (place / "over").touch()
    assert json.loads(undisturbed)["status"] == "finished", told
    assert json.loads(attacked)["status"] == "finished", said
    assert json.loads(attacked)["artifact_sha256"] == json.loads(undisturbed)["artifact_sha256"]
    assert json.loads(attacked)["attempts"] == 2, "and it recovered from a death meanwhile"
    assert attacker.communicate()[0].strip() == "[]"
