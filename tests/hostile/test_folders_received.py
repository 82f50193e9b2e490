"""Run folders that were received, and shared places: no link is written through, no order followed, no stranger's file taken."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import holdfast
from holdfast.base.errors import Stop
from holdfast.base.files import append_line, read_json, replacing
from holdfast.base.locks import hold, taken
from holdfast.config.load import load_config
from holdfast.report.bundle_parts import read_parts
from holdfast.run.folder import TRUSTED, RunFolder
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import sweep
from holdfast.run.timeline import Entry, add_entry
from holdfast.supervision.launch import trainer_launch

Write = Callable[..., Path]
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("received")
    (folder / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "c"}) + "\n" for n in range(8)))
    (folder / "run.yaml").write_text("model: tiny\ndata: {files: rows.jsonl}\ntrain: {steps: 2, effective_batch: 2}\n")
    done = holdfast("train", folder / "run.yaml", "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run", symlinks=True)


def test_a_run_folder_is_its_owners_alone(finished: Path) -> None:
    assert stat.S_IMODE(finished.stat().st_mode) == 0o700
    assert stat.S_IMODE((finished / "supervisor.lock").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["PYTHONPATH", "LD_PRELOAD", "PATH", "LD_AUDIT", "PYTHONSTARTUP", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize("verb", [("chat",), ("trial", "--step", "1")])
def test_a_variable_of_a_received_timeline_is_refused_by_name(run: Path, name: str, verb: tuple[str, ...]) -> None:
    add_entry(RunFolder(run).timeline_file, Entry(1, {"env": {name: str(run)}}, "because"))
    with pytest.raises(Stop, match=name):
        trainer_launch(RunFolder(run))
    if name == "PYTHONPATH":
        (run / "sitecustomize.py").write_text(f"open({str(run / 'ran')!r}, 'w')")
        done = holdfast(verb[0], run, *verb[1:])
        assert done.returncode == 1 and name in done.stderr and not (run / "ran").exists()


def test_a_variable_of_a_remedy_is_taken(run: Path) -> None:
    add_entry(RunFolder(run).timeline_file, Entry(1, {"env": {"HSA_ENABLE_INTERRUPT": "0"}}, "it helped"))
    assert trainer_launch(RunFolder(run)).env["HSA_ENABLE_INTERRUPT"] == "0"


@NEEDS_ROOT
@pytest.mark.parametrize("verb", ["train", "chat", "trial"])
def test_a_folder_of_another_user_is_refused_unless_allowed(run: Path, verb: str) -> None:
    os.chown(run, 12345, 12345)
    arguments = {"train": (run / "config.yaml", "--run", run), "chat": (run,), "trial": (run, "--step", "1")}[verb]
    done = holdfast(verb, *arguments)
    assert done.returncode == 1 and "belongs to another user" in done.stderr and TRUSTED in done.stderr
    if verb == "train":
        assert holdfast(verb, *arguments, env={TRUSTED: "1"}).returncode == 0


def test_a_report_replaces_a_link_and_leaves_what_it_led_to(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "bashrc"
    victim.write_text("alias ll='ls -l'\n")
    (run / "report.html").unlink()
    (run / "report.html").symlink_to(victim)
    assert holdfast("report", run).returncode == 0
    assert victim.read_text() == "alias ll='ls -l'\n" and "<html" in (run / "report.html").read_text()


@pytest.mark.parametrize("name", ["supervisor.lock", "events.jsonl", "track.log", "standby.log"])
def test_nothing_is_written_through_a_link(run: Path, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept\n")
    for file in ("summary.json", "attempts/001/wreck.json", name):  # it is to go on
        (run / file).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    done = holdfast("train", run / "config.yaml", "--run", run, "train.steps=2", "run.standby=true")
    assert victim.read_text() == "kept\n"
    assert "Traceback" not in done.stderr and done.returncode in (0, 1), done.stderr


def test_a_bundle_stays_in_its_folder(run: Path, tmp_path: Path) -> None:
    docker = tmp_path / ".docker"
    docker.mkdir()
    (docker / "launch.json").write_text('{"auth": "c2VjcmV0"}')
    (run / "attempts" / "002").symlink_to(docker)
    texts = [part.text for part in read_parts(run, lambda file: (file.read_text(errors="replace"), ""))]
    assert len(texts) > 5 and not any("c2VjcmV0" in text for text in texts)


def test_temporary_files_are_new_and_never_a_planted_link(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with replacing(tmp_path / "file") as handle:
            names |= {entry.name for entry in tmp_path.iterdir() if entry.suffix == ".tmp"}
            handle.write(b"x")
    assert len(names) == 3


@pytest.mark.parametrize("kind", ["another user's", "writable by others", "a link", "a pipe"])
def test_a_snapshot_that_could_be_somebody_elses_is_not_taken(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "holdfast-0-0.rank0"
    MemoryFile.create(path, tmp_path / "gone", 64, 64).memory.close()
    assert MemoryFile.open(path) is not None
    if kind == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to another user")
        os.chown(path, 12345, 12345)
    elif kind == "writable by others":
        path.chmod(0o622)
    elif kind == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.unlink()
        os.mkfifo(path)
    assert MemoryFile.open(path) is None
    assert sweep(tmp_path) == [] and path.is_symlink() | path.exists(), "and a sweep waits for none of them"


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError), hold(tmp_path / "lock", wait=False):
        pass
    assert not taken(tmp_path / "lock"), "none is ever taken through a link"
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "endless", "large"])
def test_what_is_no_file_holds_no_json(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "config.json"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "large":
        with file.open("wb") as handle:
            handle.truncate(1 << 40)
    else:
        file.symlink_to(file if kind == "loop" else "/dev/zero")
    assert read_json(file) is None


def test_a_journal_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError):
        append_line(tmp_path / "events.jsonl", {"event": "x"})


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/dev/urandom", "link to /dev/zero"])
def test_rows_are_read_from_files_alone(tmp_path: Path, kind: str) -> None:
    rows = tmp_path / "rows.jsonl"
    if kind == "pipe":
        os.mkfifo(rows)
    elif kind.startswith("link"):
        rows.symlink_to("/dev/zero")
    else:
        rows = Path(kind)
    (tmp_path / "run.yaml").write_text(f"model: tiny\ndata: {{files: {rows}}}\n")
    with pytest.raises(Stop, match="a pipe or a device"):
        load_config(tmp_path / "run.yaml")
