"""The file system of a run folder becomes read-only in mid-run, as ext4 does on an error: lived through, or ended with a sentence."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import events, holdfast, lines, processes_of, start, wait_until, write_config
from holdfast.base.identity import myself
from holdfast.base.locks import hold
from holdfast.config.load import load_config
from holdfast.processes import process
from holdfast.processes.attempt import Attempt
from holdfast.processes.process import end_seen
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending
from holdfast.supervision.command import attempts

STEPS = 30
pytestmark = pytest.mark.usefixtures("no_leftovers")


@pytest.fixture
def slow(assets: SimpleNamespace, tmp_path: Path) -> list[Any]:
    """A run of STEPS steps that waits at step 20."""
    train = {"steps": STEPS, "effective_batch": 4, "lr": 1e-3, "max_tokens": 96, "threads": 1}
    tree = {"model": str(assets.model), "data": {"files": [str(assets.rows)]}, "adapter": {"r": 4}, "train": train, "save": {"every": 5}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree | {"evaluate": {"generate": 0}, "run": {"standby": False}}))
    faults = [{"when": {"step": step, "attempt": 1}, "effect": "slow", "seconds": 0.2} for step in range(8, 28)]
    (tmp_path / "f.yaml").write_text(json.dumps(faults))
    return ["train", tmp_path / "c.yaml"]


class Frozen:
    """A folder that nothing can be written to, until it is thawed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.is_frozen = folder, False

    def freeze(self) -> None:
        if subprocess.run(["mount", "--bind", self.folder, self.folder], capture_output=True, check=False).returncode:
            pytest.skip("mounting needs root")
        self.is_frozen = True
        subprocess.run(["mount", "-o", "remount,ro,bind", self.folder], check=True)

    def thaw(self) -> None:
        if self.is_frozen:
            subprocess.run(["umount", "-l", self.folder], check=True)
        self.is_frozen = False


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Frozen]:
    (tmp_path / "run").mkdir()
    frozen = Frozen(tmp_path / "run")
    yield frozen
    frozen.thaw()


def begun(slow: list[Any], run: Path, tmp_path: Path) -> subprocess.Popen[str]:
    child = start(*slow, "--run", run, "--faults", tmp_path / "f.yaml")
    wait_until(lambda: (run / "steps.jsonl").exists() and len(lines(run / "steps.jsonl")) >= 9)
    return child


def undisturbed(slow: list[Any], tmp_path: Path) -> str:
    whole = holdfast(*slow, "--run", tmp_path / "whole", "--json")
    return str(json.loads(whole.stdout)["artifact_sha256"])


def test_a_disk_that_is_read_only_for_a_while_is_lived_through(slow: list[Any], run: Frozen, tmp_path: Path) -> None:
    child = begun(slow, run.folder, tmp_path)
    run.freeze()
    heard = child.stdout
    assert heard is not None
    told = ""
    while "training continues" not in told:
        line = heard.readline()
        assert line, told
        told += line
    run.thaw()
    output, _ = child.communicate()
    assert child.returncode == 0, told + output
    assert len(events(run.folder, "attempt_started")) == 1
    assert [row["step"] for row in lines(run.folder / "steps.jsonl")] == list(range(1, STEPS + 1))
    assert json.loads((run.folder / "summary.json").read_text())["artifact_sha256"] == undisturbed(slow, tmp_path)


def test_one_that_stays_read_only_ends_with_a_sentence_and_the_same_command_goes_on(slow: list[Any], run: Frozen, tmp_path: Path) -> None:
    child = begun(slow, run.folder, tmp_path)
    living = processes_of(run.folder)
    run.freeze()
    output, _ = child.communicate()
    assert child.returncode == 3, output
    assert "read-only" in output and "rerun the same command" in output and "Traceback" not in output and "bug" not in output
    assert "is full" not in output
    assert living and not any(Path(f"/proc/{pid}/exe").exists() for pid in living.values() if pid)
    run.thaw()
    done = holdfast(*slow, "--run", run.folder, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["artifact_sha256"] == undisturbed(slow, tmp_path)
    assert [row["step"] for row in lines(run.folder / "steps.jsonl")] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EFBIG, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_lock_that_cannot_be_written_to_ends_no_supervision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """It is locked as it is, or, where it cannot be opened at all, processes are seen without it."""
    run = RunFolder(tmp_path)
    attempt = Attempt(1, run.attempt(1), shim=None)
    attempt.folder.mkdir(parents=True)
    (attempt.folder / "nurse.json").write_text(json.dumps(myself()))
    opened, broken = os.open, {"O_RDWR": True, "O_RDONLY": False}

    def fail(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if str(path) == str(run.trainer_lock) and broken["O_RDWR" if flags & os.O_RDWR else "O_RDONLY"]:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *rest, **more)

    with hold(run.trainer_lock, wait=False):
        monkeypatch.setattr(os, "open", fail)
        assert end_seen(attempt, run) is None, "locked by the trainer"
        broken["O_RDONLY"] = True
        assert end_seen(attempt, run) is None, "its shim lives"
    monkeypatch.setattr("holdfast.processes.process.alive", lambda identity: False)
    assert end_seen(attempt, run) == {}, "nobody lives"
    broken["O_RDONLY"] = False
    assert end_seen(attempt, run) == {}


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("of", ["trainer", "command"])
def test_a_look_at_an_attempt_that_the_disk_fails_ends_no_supervision(
    of: str, number: int, assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failed read of a file of the attempt ended the supervision with exit 1, while its trainer lived on."""
    run = RunFolder(tmp_path)
    run.write_config(load_config(write_config(assets, tmp_path / "c.yaml")))
    attempt = Attempt(1, run.attempt(1), shim=None)
    attempt.folder.mkdir(parents=True)
    failing = [3]

    def ended(*_: Any) -> Ending:
        failing[0] -= 1
        if failing[0] >= 0:
            raise OSError(number, os.strerror(number), str(attempt.folder / "ready.json"))
        return Ending("finished")

    place = process if of == "trainer" else attempts
    monkeypatch.setattr(place, "_ending", ended)
    monkeypatch.setattr(place, "LOOK_EVERY_S", 0.0)
    nothing: Any = SimpleNamespace()
    if of == "trainer":
        look = lambda: process.watch(attempt, run, lambda _: False)  # noqa: E731
    else:
        look = lambda: attempts.watch(attempt, run, nothing, nothing, nothing, lambda _: 0)  # noqa: E731
    assert look() == Ending("finished")
    failing[0] = 1000
    with pytest.raises(OSError, match=r"ready\.json"):
        look()
    assert failing[0] > 900, "it is not waited for for ever"
