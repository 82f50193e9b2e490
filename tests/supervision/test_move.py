"""A run at two places: what is sent is whole or absent, the newest that verifies is taken, machines are compared, nothing is deleted."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import events, fill, holdfast, start, wait_until
from holdfast.base.errors import Stop
from holdfast.base.locks import hold
from holdfast.callback import shared as shared_state
from holdfast.callback.shared import SharedState, newest, run_of, step_of
from holdfast.config.config import Config, Save
from holdfast.machine.differences import unlike
from holdfast.processes.tree import below
from holdfast.report.summarise import place_in_words, second_place
from holdfast.report.words import shown
from holdfast.row_sources import remote_files
from holdfast.run.artifact import Artifact
from holdfast.run.command import Command, read_command, write_command
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import newest_valid, save_checkpoint
from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.supervision.foreign_checkpoints.kept import snapshot_of
from holdfast.supervision.remote import elsewhere, lease
from holdfast.supervision.remote.lease import Lease, free_lease, lease_at
from holdfast.supervision.remote.of_command import CommandSender, fetched_for
from holdfast.supervision.remote.state import Sender, fetch, states_at
from holdfast.supervision.remote.targets import Remote, Target, target_of
from holdfast.supervision.training.rollback import roll_back
from holdfast.trainer.state.saving import CheckpointSchedule
from support.old_runs import settle

KEEP = Save(keep=2)


def begun(path: Path, steps: int = 0) -> RunFolder:
    """A run folder with a checkpoint for each step."""
    path.mkdir()
    run = RunFolder(path)
    run.write_id("a" * 32)
    run.write_config(Config.model_validate({"model": "tiny", "data": {"files": "f"}}))
    (path / "data.safetensors").write_bytes(b"rows" * 1000)
    (path / "attempts" / "001").mkdir(parents=True)
    (path / "attempts" / "001" / "wreck.json").write_text("{}")
    (path / "trainer.lock").write_text("")
    for step in range(1, steps + 1):
        train(run, step)
    return run


def train(run: RunFolder, step: int) -> None:
    with run.steps_file.open("a") as journal:
        journal.write(json.dumps({"step": step}) + "\n")
    save_checkpoint(
        run, Snapshot(step, step, {"rows": [{"step": step}]}, b"adapter %d" % step, b"state %d" % step), Artifact("adapter", {}), KEEP
    )


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    """A shared folder, and an object store's interface."""
    if request.param == "folder":
        yield target_of(str(tmp_path / "shared"))
        return
    fsspec = pytest.importorskip("fsspec")
    yield Remote(f"memory://{tmp_path.name}/runs")
    fsspec.filesystem("memory").store.clear()


def test_a_state_that_was_sent_is_the_run_on_another_machine(place: Target, tmp_path: Path) -> None:
    run = begun(tmp_path / "here", 3)
    with run.steps_file.open("a") as journal:
        journal.write('{"step": 4, "torn')
    sent = Sender(run, place).send()
    assert sent is not None and sent.step == 3
    step, passed_over = fetch(place, tmp_path / "there")
    there = RunFolder(tmp_path / "there")
    checkpoint, _ = newest_valid(there)
    assert (step, passed_over, checkpoint and checkpoint.step, there.committed()) == (3, [], 3, 3)
    assert there.data_file.read_bytes() == run.data_file.read_bytes() and there.config() == run.config()
    assert (there.path / "attempts/001/wreck.json").exists() and not (there.path / "trainer.lock").exists()
    assert there.path.stat().st_mode & 0o077 == 0, "rows are nobody else's"


def test_what_is_there_already_is_not_sent_again_and_old_states_go(place: Target, tmp_path: Path) -> None:
    run = begun(tmp_path / "here", 2)
    sender = Sender(run, place)
    first = sender.send(keep=2)
    train(run, 3)
    second = sender.send(keep=2)
    train(run, 4)
    third = Sender(run, place).send(keep=2)
    assert first and second and third
    assert first.new_bytes > 4000 > second.new_bytes and third.new_bytes < 4000, "the rows are sent once"
    assert states_at(place) == [3, 4]
    named = set()
    for step in (3, 4):
        named |= {one["sha256"] for one in json.loads(place.read(f"states/step-{step:08d}.json"))["files"].values()}
    assert set(place.names("blobs")) == named


def damaged(place: Target, step: int, name: str) -> str:
    """The blob of a file that only this state has."""
    files = json.loads(place.read(f"states/step-{step:08d}.json"))["files"]
    return f"blobs/{files[name]['sha256']}"


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda place, blob: place.put(blob, b"other"), "is not what its list says"),
        (lambda place, blob: place.put(blob, place.read(blob)[::-1]), "is not what its list says"),
        (lambda place, blob: place.remove(blob), ""),
        (lambda place, _: place.put("states/step-00000002.json", b'{"format": 1, "step"'), "its list of files cannot be read"),
        (
            lambda place, _: place.put("states/step-00000002.json", b'{"format": 9, "step": 2, "files": {}}'),
            "its list of files cannot be read",
        ),
    ],
    ids=["torn", "changed", "missing", "torn list", "newer format"],
)
def test_the_newest_state_that_verifies_is_taken(place: Target, tmp_path: Path, harm: Callable[[Target, str], None], reason: str) -> None:
    run = begun(tmp_path / "here", 1)
    sender = Sender(run, place)
    sender.send()
    train(run, 2)
    sender.send()
    harm(place, damaged(place, 2, "checkpoints/step-00000002/state.safetensors"))
    step, passed_over = fetch(place, tmp_path / "there")
    assert step == 1 and passed_over[0]["state"] == 2 and reason in passed_over[0]["reason"]
    assert newest_valid(RunFolder(tmp_path / "there"))[0] is not None


@pytest.mark.parametrize(
    "name", ["../../.bashrc", "/etc/cron.d/x", "checkpoints/../../x", "supervisor.lock", "steps.jsonl/x", "", "attempts"]
)
def test_a_list_that_names_files_outside_of_a_run_is_none(place: Target, tmp_path: Path, name: str) -> None:
    run = begun(tmp_path / "here", 1)
    Sender(run, place).send()
    manifest = json.loads(place.read("states/step-00000001.json"))
    manifest["files"][name] = manifest["files"]["run.json"]
    place.put("states/step-00000001.json", json.dumps(manifest).encode())
    with pytest.raises(Stop, match="its list of files cannot be read"):
        fetch(place, tmp_path / "there")
    assert not (tmp_path / "there").exists() and not list(tmp_path.glob(".there*"))


def test_a_damaged_checkpoint_is_not_sent(place: Target, tmp_path: Path) -> None:
    run = begun(tmp_path / "here", 2)
    (run.checkpoints / "step-00000002" / "state.safetensors").write_bytes(b"torn")
    sent = Sender(run, place).send()
    assert sent is not None and sent.step == 1
    shutil.rmtree(run.checkpoints)
    assert Sender(run, place).send() is None


def test_two_runs_do_not_share_a_place(place: Target, tmp_path: Path) -> None:
    Sender(begun(tmp_path / "one", 1), place).send()
    other = begun(tmp_path / "two", 1)
    other.write_id("b" * 32)
    with pytest.raises(Stop, match="holds another run"):
        Sender(other, place).send()


def test_a_run_that_went_on_elsewhere_is_taken_from_there_and_what_was_here_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "compared", lambda run, machine: ([], []))
    monkeypatch.setattr(elsewhere, "read_machine", lambda path: {})
    config = Config.model_validate({"model": "tiny", "data": {"files": "f"}, "save": {"to": str(tmp_path / "shared")}})
    place, said = target_of(str(tmp_path / "shared")), []
    here = begun(tmp_path / "here", 2)
    elsewhere.fetched(here.path, config, said.append)
    assert here.committed() == 2 and not said, "nothing is there"
    Sender(here, place).send()
    elsewhere.fetched(here.path, config, said.append)
    assert not said, "as far as here"
    fetch(place, tmp_path / "there")
    there = RunFolder(tmp_path / "there")
    train(there, 3)
    Sender(there, place).send()
    elsewhere.fetched(here.path, config, said.append)
    assert here.committed() == 3 and RunFolder(tmp_path / "here.behind-2").committed() == 2
    assert said[0].startswith("the run went on elsewhere; what was here, up to step 2, is kept as")
    for blob in place.names("blobs"):
        place.put(f"blobs/{blob}", b"")
    train(there, 4)
    place.put("states/step-00000009.json", b"{}")
    with pytest.raises(Stop, match="no state of a run"):
        elsewhere.fetched(here.path, config, said.append)
    assert here.committed() == 3, "put back where nothing could be fetched"


def test_steps_that_a_rollback_took_back_are_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest state over there was of the course that had gone wrong: the next start put what was here aside and went on from that."""
    monkeypatch.setattr(elsewhere, "compared", lambda run, machine: ([], []))
    monkeypatch.setattr(elsewhere, "read_machine", lambda path: {})
    config = Config.model_validate({"model": "tiny", "data": {"files": "f"}, "save": {"to": str(tmp_path / "shared")}})
    place, said = target_of(str(tmp_path / "shared")), []
    here = begun(tmp_path / "here", 4)
    Sender(here, place).send()
    train(here, 5)
    Sender(here, place).send()
    roll_back(here, [], 4, {}, [], "the loss left its level")
    elsewhere.fetched(here.path, config, said.append)
    assert (here.committed(), said) == (4, []), "before anything is sent again"
    Sender(here, place).send(keep=2)
    assert states_at(place) == [4], "another machine takes the one that counts"
    train(here, 5)
    Sender(here, place).send()
    there = tmp_path / "there"
    assert fetch(place, there)[0] == 5 and (there / "rollbacks/001/rollback.json").exists()
    train(RunFolder(there), 6)
    Sender(RunFolder(there), place).send()
    elsewhere.fetched(here.path, config, said.append)
    assert here.committed() == 6, "what was sent since counts"


def test_a_run_that_is_at_work_is_not_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command, typed beside a run that goes on: its folder was renamed under it."""
    here, place = begun(tmp_path / "here", 3), target_of(str(tmp_path / "shared"))
    Sender(here, place).send()
    here.steps_file.write_text('{"step": 2}\n')  # the journal is behind, as on a disk that was full, or where its supervisor died
    config = Config.model_validate({"model": "tiny", "data": {"files": "f"}, "save": {"to": str(tmp_path / "shared")}})
    for lock in (here.trainer_lock, here.supervisor_lock):
        with hold(lock, wait=False):
            elsewhere.fetched(here.path, config, lambda text: pytest.fail(text))
            monkeypatch.setattr("platform.node", lambda: "another")
            with pytest.raises(Stop, match="is still at work here, at step 2") as stop:
                elsewhere.fetched(here.path, config, lambda text: pytest.fail(text))
            monkeypatch.undo()
        assert stop.value.code == 1 and here.checkpoints.is_dir()


def test_what_another_machine_sent_is_never_pruned_by_one_that_is_behind(tmp_path: Path) -> None:
    """One that slept while another trained on, and gave its lease back."""
    here, place = begun(tmp_path / "here", 3), target_of(str(tmp_path / "shared"))
    Sender(here, place).send()
    roll_back(here, [], 2, {}, [], "long before")
    fetch(place, tmp_path / "there")
    train(RunFolder(tmp_path / "there"), 4)
    Sender(RunFolder(tmp_path / "there"), place).send()
    train(here, 3)
    Sender(here, place).send()
    assert states_at(place) == [3, 4]


def test_a_newest_checkpoint_that_is_damaged_here_takes_no_whole_one_away_there(tmp_path: Path) -> None:
    here, place = begun(tmp_path / "here", 3), target_of(str(tmp_path / "shared"))
    Sender(here, place).send()
    (here.checkpoints / "step-00000003/state.safetensors").write_bytes(b"another")
    sent = Sender(here, place).send()
    assert sent and sent.step == 2 and states_at(place) == [2, 3]


ADDRESSES = [
    ("nonsense://x/y", "is no address that fsspec knows"),
    ("sftp://me:secret@host/runs", "holds a user or a password"),
    ("s3://key@bucket/x", "holds a user or a password"),
]


@pytest.mark.parametrize(("address", "sentence"), ADDRESSES)
def test_an_address_that_cannot_be_is_refused_with_a_sentence(address: str, sentence: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(Stop, match=sentence) as stop:
        target_of(address)
    assert stop.value.code == 2 and "secret" not in str(stop.value)


def test_without_the_package_of_a_service_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(remote_files.importlib, "import_module", missing)
    with pytest.raises(Stop, match="Install s3fs") as stop:
        target_of("s3://bucket/x")
    assert "'.[remote]'" in stop.value.hint


def test_machines_differ_by_what_changes_bits_speed_or_memory() -> None:
    card = {"vendor": "nvidia", "arch": "sm_90", "name": "H100", "memory_bytes": 80 << 30}
    one = {"gpus": [card], "torch": {"version": "2.13.0+cu130", "cuda": "13.0"}, "packages": {"peft": "0.21.2"}, "memory_bytes": 64 << 30}
    other = {
        "gpus": [card | {"name": "H200"}],
        "torch": {"version": "2.13.0+cu130", "cuda": "13.0"},
        "packages": {},
        "memory_bytes": 128 << 30,
    }
    told = unlike(one, other)
    assert told[0] == "GPUs: H100 -> H200" and told[1] == "memory: 64 GiB -> 128 GiB" and "not to the bit" in told[-1]
    assert unlike(one, one) == [] == unlike(one, {}), "what is unknown is no difference"


def test_the_verb_sends_fetches_and_refuses_in_words(tmp_path: Path) -> None:
    settle(tmp_path / "made", "text-unfinished")
    run = RunFolder(tmp_path / "made/runs/text-unfinished")
    shutil.rmtree(run.checkpoints)
    empty = holdfast("move", run.path, "--to", tmp_path / "shared", "--json")
    assert empty.returncode == 1 and "has no checkpoint that verifies" in empty.stderr, empty.stderr
    nowhere = holdfast("move", tmp_path / "nothing", "--to", tmp_path / "x")
    assert nowhere.returncode == 2 and "is no run folder, and no place that a run was moved to" in nowhere.stderr


@pytest.mark.parametrize(("lacks", "says"), [("timeline.jsonl", "timeline.jsonl is missing"), ("plan.json", "plan.json is missing")])
@pytest.mark.parametrize("kind", ["text-unfinished", "text"])
def test_a_run_that_could_not_go_on_there_is_not_said_to_be_sent(kind: str, lacks: str, says: str, tmp_path: Path) -> None:
    """One that is finished is sent all the same, and what it lacks is told."""
    settle(tmp_path / "made", kind)
    run = tmp_path / "made/runs" / kind
    (run / lacks).unlink()
    done = holdfast("move", run, "--to", tmp_path / "shared")
    told = f"{done.stdout}{done.stderr}"
    assert says in told and ("sent the state" in told) == (kind == "text") and done.returncode == (kind != "text"), told
    assert ("nothing was sent, as the run could not go on there" in told) == (kind != "text")
    assert ("could not be trained on" in told) == (kind == "text")
    assert kind == "text" or not states_at(target_of(str(tmp_path / "shared")))


def test_a_run_whose_own_name_is_lost_is_sent_by_the_name_in_its_checkpoints(tmp_path: Path) -> None:
    settle(tmp_path / "made", "text-unfinished")
    run = tmp_path / "made/runs/text-unfinished"
    name = json.loads((run / "run.json").read_text())["id"]
    (run / "run.json").write_text('{"id"')
    done = holdfast("move", run, "--to", tmp_path / "shared")
    assert done.returncode == 0 and "run.json was missing or damaged; it was written again" in f"{done.stdout}{done.stderr}", done.stderr
    assert json.loads((tmp_path / "shared/run.json").read_text())["id"] == json.loads((run / "run.json").read_text())["id"] == name


@pytest.mark.long
@pytest.mark.usefixtures("no_leftovers")
def test_a_run_that_is_moved_and_moved_back_ends_with_the_bits_of_one_that_stayed(
    config_of: Callable[..., Path], tmp_path: Path, assets: SimpleNamespace
) -> None:
    stayed = holdfast("train", config_of(name="stayed"), "--json", "--run", tmp_path / "stayed")
    assert stayed.returncode == 0, stayed.stderr
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"faults": [{"effect": "raise", "when": {"step": 5}}]}))
    config = config_of(name="moved", save={"to": str(tmp_path / "shared")}, train={"reduction_parts": 4, "threads": 1})
    alone = holdfast("train", config_of(name="alone", train={"reduction_parts": 4, "threads": 1}), "--json", "--run", tmp_path / "alone")
    ended = holdfast("train", config, "run.trials=0", "--faults", faults, "--run", tmp_path / "one")
    assert ended.returncode == 3
    assert [event["step"] for event in events(tmp_path / "one", "state_sent")][-1] == 4
    shutil.rmtree(tmp_path / "one")  # that machine is gone
    done = holdfast("train", config, "train.ranks=2", "--json", "--run", tmp_path / "two")
    assert done.returncode == 0, done.stderr
    assert "fetched the state after step 4" in done.stderr
    assert json.loads(done.stdout)["artifact_sha256"] == json.loads(alone.stdout)["artifact_sha256"]
    moved = holdfast("move", tmp_path / "shared", "--to", tmp_path / "back", "--json")
    assert moved.returncode == 0 and json.loads(moved.stdout)["step"] == 8, moved.stderr
    again = holdfast("train", tmp_path / "back" / "config.yaml", "--run", tmp_path / "back", "--json")
    assert json.loads(again.stdout)["artifact_sha256"] == json.loads(alone.stdout)["artifact_sha256"]


# -- two machines on one place: neither sees the other's locks

BEATS = "import sys; from holdfast.supervision.remote import lease, upload; lease.BEAT_S = 0.1; "


def uploader(run: RunFolder, place: Path) -> subprocess.Popen[str]:
    """The process that sends a run's states beside its training, with beats that a test can wait for."""
    code = BEATS + "sys.exit(upload.main(upload.RunFolder(upload.Path(sys.argv[1])), sys.argv[2], 3))"
    return subprocess.Popen([sys.executable, "-c", code, run.path, place], text=True)


def copied(run: RunFolder, path: Path) -> RunFolder:
    shutil.copytree(run.path, path)
    return RunFolder(path)


def test_a_second_machine_is_refused_while_the_first_trains_and_takes_over_once_it_is_gone(tmp_path: Path) -> None:
    place, said = tmp_path / "shared", []
    here = begun(tmp_path / "here", 1)
    there = copied(here, tmp_path / "there")
    target = target_of(str(place))
    first, second = uploader(here, place), None
    try:
        wait_until(lambda: lease_at(target) is not None)
        copy = copied(here, tmp_path / "copy")  # with the first one's token in it
        for other in (there, copy):
            with pytest.raises(Stop, match="is being trained by") as stop:
                free_lease(target, other, said.append)
            assert stop.value.code == 1 and str(here.path) in str(stop.value) and "silent for 1 s" in stop.value.hint
        free_lease(target, here, lambda text: pytest.fail(text))  # its own folder's lock says who works there
        first.send_signal(signal.SIGSTOP)
        free_lease(target, there, said.append)
        assert said[-1] == "it said nothing for 1 s: the run is taken over here"
        second = uploader(there, place)
        wait_until(lambda: (lease_at(target) or {}).get("folder") == str(there.path))
        first.send_signal(signal.SIGCONT)
        wait_until(lambda: here.events_file.exists() and bool(events(here.path, "lease_lost")))
        train(here, 9)
        first.send_signal(signal.SIGTERM)
        assert first.wait() == 1 and 9 not in states_at(target), "the one that was held up sends nothing more"
        assert str(there.path) in events(here.path, "lease_lost")[0]["holder"]
        second.send_signal(signal.SIGTERM)
        assert second.wait() == 0 and lease_at(target) is None, "given back"
    finally:
        for child in filter(None, (first, second)):
            child.kill()
            child.wait()


def test_clocks_that_are_hours_apart_say_nothing_about_who_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 1.0)  # six of them are a silence: more than a busy machine holds a thread up
    target, here = target_of(str(tmp_path / "shared")), begun(tmp_path / "here")
    real = time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, *_: real(form, time.localtime(time.time() - 9 * 3600)))
    with Lease(here, target), pytest.raises(Stop, match="is being trained by"):
        free_lease(target, begun(tmp_path / "there"), lambda _: None)
    target.put("lease.json", json.dumps(lease._ours(here) | {"since": "2099-01-01 00:00:00", "beat": 7, "beat_s": 0.05}).encode())
    free_lease(target, begun(tmp_path / "third"), lambda _: None)
    assert lease_at(target) is None, "from the future, and silent"


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"token": 1, "host": "h", "folder": "f", "since": "", "beat": "x", "beat_s": "nan"}']
)
def test_what_is_no_lease_keeps_nobody_out(place: Target, tmp_path: Path, text: bytes) -> None:
    place.put("lease.json", text)
    free_lease(place, begun(tmp_path / "here"), lambda said: pytest.fail(said))
    with Lease(begun(tmp_path / "there"), place):
        assert (lease_at(place) or {})["folder"] == str(tmp_path / "there")


class Late:
    """A place that shows files `late_s` after they were written, as a network disk does whose names are cached."""

    def __init__(self, target: Target, late_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.target, self.address, self.late_s, self.now = target, target.address, late_s, now
        self.seen: dict[str, list[tuple[float, bytes]]] = {}

    def put(self, name: str, source: Path | bytes) -> None:
        self.seen.setdefault(name, []).append((self.now(), source if isinstance(source, bytes) else source.read_bytes()))

    def _now(self, name: str) -> bytes | None:
        old = [data for at, data in self.seen.get(name, []) if at + self.late_s <= self.now()]
        return old[-1] if old else None

    def names(self, folder: str) -> list[str]:
        return [name.partition("/")[2] for name in self.seen if name.startswith(f"{folder}/") and self._now(name) is not None]

    def size(self, name: str) -> int | None:
        return None if (data := self._now(name)) is None else len(data)

    def read(self, name: str) -> bytes:
        if (data := self._now(name)) is None:
            raise FileNotFoundError(name)
        return data

    def get(self, name: str, path: Path) -> None:
        path.write_bytes(self.read(name))

    def remove(self, name: str) -> None:
        self.seen.pop(name, None)


def test_a_place_that_shows_files_late_gives_an_older_state_or_none_and_never_half_a_one(tmp_path: Path) -> None:
    passed = [0.0]
    run, late = begun(tmp_path / "here", 1), Late(target_of(str(tmp_path / "shared")), 0.5, lambda: passed[0])
    sender = Sender(run, late)
    sender.send()
    with pytest.raises(Stop, match="there is none"):
        fetch(late, tmp_path / "there")
    passed[0] += 0.5
    train(run, 2)
    sender.send()
    assert fetch(late, tmp_path / "older")[0] == 1
    late.seen["states/step-00000002.json"] = [(0.0, data) for _, data in late.seen["states/step-00000002.json"]]  # before its blobs
    step, passed_over = fetch(late, tmp_path / "half")
    assert step == 1 and passed_over[0]["state"] == 2
    passed[0] += 0.5
    assert fetch(late, tmp_path / "newest")[0] == 2


def test_a_holder_is_seen_through_a_place_that_shows_files_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 1.0)  # six of them are a silence: more than a busy machine holds a thread up
    late = Late(target_of(str(tmp_path / "shared")), 0.2)
    with Lease(begun(tmp_path / "here"), late):
        wait_until(lambda: lease_at(late) is not None)
        with pytest.raises(Stop, match="is being trained by"):
            free_lease(late, begun(tmp_path / "there"), lambda _: None)


@pytest.mark.long
@pytest.mark.usefixtures("no_leftovers")
def test_a_run_that_another_machine_took_over_is_stopped_here_and_refused_until_that_one_ends(
    config_of: Callable[..., Path], tmp_path: Path
) -> None:
    place = target_of(str(tmp_path / "shared"))
    config = config_of(save={"to": place.address, "every": 1}, train={"steps": 400}, run={"standby": False})
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"faults": [{"effect": "slow", "seconds": 0.2, "when": {"every": 1}}]}))
    run = start("train", config, "--faults", faults, "--run", tmp_path / "run")
    wait_until(lambda: (lease_at(place) or {}).get("beat", 0) > 1)
    other = begun(tmp_path / "other")
    with Lease(RunFolder(tmp_path / "run"), place) as ours:
        place.put("lease.json", json.dumps(lease._ours(other) | {"since": "now", "beat": 1, "beat_s": 0.2, "token": "b" * 32}).encode())
        output, _ = run.communicate()
        ours.lost.set()
    assert run.returncode == 130, output
    assert "the run at" in output and "went on elsewhere, with" in output and str(other.path) in output
    stood = RunFolder(tmp_path / "run").committed()
    assert 2 < stood < 400
    place.remove("lease.json")
    with Lease(other, place):
        lease_of = lease_at(place)
        assert lease_of is not None
        refused = start("train", config, "--run", tmp_path / "run")
        while refused.poll() is None:
            lease_of["beat"] += 1
            place.put("lease.json", json.dumps(lease_of).encode())
            time.sleep(0.2)
        output, _ = refused.communicate()
    assert refused.returncode == 1 and "is being trained by" in output, output


# -- somebody else's command at a second place

TRAINER = Path(__file__).parents[1] / "support" / "fake_trainer.py"


def command_at(box: Path, to: Path | str, step: int | None = None, facts: object = ("of", "step")) -> tuple[RunFolder, Command]:
    """A command's run in `box`, with a checkpoint of step 4; step: of what its callback keeps in memory."""
    command = Command(("python", "train.py"), str(box), checkpoints="out", callback=True, to=str(to))
    run = RunFolder(box / "run")
    run.attempt(1).joinpath("pattern").mkdir(parents=True)
    (run.attempt(1) / "pattern" / "adapter_config.json").write_text("{}")
    (run.attempt(1) / "launch.json").write_text("{}")
    run.write_id("c" * 32)
    write_command(run, command)
    run.append(run.progress_file, {"step": step or 4})
    checkpoint = box / "out" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4, "max_steps": 8}))
    if step is not None:
        keep(run, step, facts)
    return run, command


def keep(run: RunFolder, step: int, facts: object = ("of", "step")) -> None:
    shared = SharedState(snapshot_of(run), str(run.path), 64, 4096)
    at, begin = shared.slot()
    shared.memory[begin : begin + 64] = bytes([step]) * 64
    shared.seal(at, pickle.dumps(facts), step)


@pytest.fixture
def forgotten(tmp_path: Path) -> Iterator[None]:
    """Nothing of a test's runs stays in shared memory."""
    yield
    for box in tmp_path.iterdir():
        snapshot_of(RunFolder(box / "run")).unlink(missing_ok=True)


def on_another_box(command: Command, box: Path, said: list[str]) -> RunFolder:
    """The same command there: what it finds of the run."""
    box.mkdir()
    fetched_for(box / "run", replace(command, folder=str(box)), said.append)
    return RunFolder(box / "run")


@pytest.mark.usefixtures("forgotten")
def test_what_a_callback_keeps_in_memory_is_there_again_on_another_box(
    place: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elsewhere, "target_of", lambda address: place)
    run, command = command_at(tmp_path / "one", place.address, step=7)
    sent = CommandSender(run, place).send()
    assert sent is not None and sent.step == 7
    snapshot_of(run).unlink()
    shutil.rmtree(tmp_path / "one")
    said: list[str] = []
    there = on_another_box(command, tmp_path / "two", said)
    assert shared_state.copied(snapshot_of(there)) == (7, bytes([7]) * 64, pickle.dumps(("of", "step")))
    assert run_of(snapshot_of(there)) == str(there.path) and (there.attempt(1) / "pattern/adapter_config.json").exists()
    assert (tmp_path / "two/out/checkpoint-4/trainer_state.json").exists() and not (there.path / "memory").exists()
    assert (read_command(there) or command).folder == str(tmp_path / "two")
    assert said == [f"fetched the state after step 7 from {place.address} into {shown(there.path)}"]
    fetched_for(there.path, replace(command, folder=str(tmp_path / "two")), said.append)
    assert len(said) == 1, "it is as far as the place"


@pytest.mark.usefixtures("forgotten")
def test_a_torn_copy_is_passed_over_for_the_one_before(place: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "target_of", lambda address: place)
    run, command = command_at(tmp_path / "one", place.address, step=6)
    sender = CommandSender(run, place)
    sender.send()
    keep(run, 7)
    sender.send()
    blob = damaged(place, 7, "memory/tensors")
    place.put(blob, place.read(blob)[:10])
    said: list[str] = []
    there = on_another_box(command, tmp_path / "two", said)
    assert step_of(snapshot_of(there)) == 6 and said[0].startswith(
        "passed over the state of step 7: memory/tensors is not what its list says"
    )


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("kind", ["train", "another command"])
def test_a_place_of_another_run_is_refused_and_nothing_stays_here(kind: str, tmp_path: Path) -> None:
    shared = target_of(str(tmp_path / "shared"))
    if kind == "train":
        Sender(begun(tmp_path / "here", 1), shared).send()
        command = Command(("python", "train.py"), "", to=shared.address)
    else:
        run, known = command_at(tmp_path / "one", shared.address)
        CommandSender(run, shared).send()
        command = replace(known, argv=("python", "other.py"))
    with pytest.raises(Stop, match=r"holds the run of (holdfast train|another command: python train.py)") as stop:
        on_another_box(command, tmp_path / "two", [])
    assert stop.value.code == 1 and not (tmp_path / "two/run").exists()


@pytest.mark.usefixtures("forgotten")
def test_a_state_in_memory_that_would_run_a_program_is_not_used(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("true",)

    shared = target_of(str(tmp_path / "shared"))
    run, command = command_at(tmp_path / "one", shared.address, step=7, facts=Trap())
    CommandSender(run, shared).send()
    said: list[str] = []
    there = on_another_box(command, tmp_path / "two", said)
    assert not snapshot_of(there).exists() and "which no checkpoint needs" in said[0] and "the newest checkpoint is used" in said[0]


@pytest.mark.usefixtures("forgotten")
def test_a_state_is_sent_after_so_many_steps_each_checkpoint_and_the_last_one(tmp_path: Path) -> None:
    run, _ = command_at(tmp_path / "one", tmp_path / "shared", step=5)
    sender = CommandSender(run, target_of(str(tmp_path / "shared")), every=4)
    taken = []
    for step, last in ((5, False), (6, False), (8, False), (9, False), (10, False), (10, True)):
        keep(run, step)
        if (now := sender.newest(last)) is not None and now != sender.sent and (sent := sender.send()):
            taken.append(sent.step)
    assert taken == [5, 9, 10]
    shutil.copytree(tmp_path / "one/out/checkpoint-4", tmp_path / "one/out/checkpoint-11")
    assert sender.newest(False) == sender.sent, "its state is of another step: it is not whole"
    (tmp_path / "one/out/checkpoint-11/trainer_state.json").write_text(json.dumps({"global_step": 11}))
    assert (sender.newest(False) or (0,))[0] == 11


@pytest.mark.usefixtures("forgotten")
def test_a_copy_of_a_slot_that_is_written_meanwhile_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = SharedState(tmp_path / "state", str(tmp_path), 8, 16)

    def write(step: int) -> None:
        at, begin = shared.slot()
        shared.memory[begin : begin + 8] = bytes([step]) * 8
        shared.seal(at, b"facts", step)

    write(1)
    waiting = [3, 2]

    def newest_meanwhile(path: Path) -> Any:
        found = newest(path)
        if waiting:
            write(waiting.pop())
            write(9 - len(waiting))
        return found

    monkeypatch.setattr("holdfast.callback.shared.newest", newest_meanwhile)
    assert shared_state.copied(tmp_path / "state") == (9, bytes([9]) * 8, b"facts")


@pytest.mark.parametrize("to", [None, "shared"])
def test_each_so_many_steps_a_state_is_made_durable_for_the_second_place(to: str | None) -> None:
    config = Config.model_validate(
        {"model": "tiny", "data": {"files": "f"}, "save": {"every": 50, "to": to, "to_every": 4 if to else None}}
    )
    orders = {"failures": 0, "running_s": 0.0}
    saving = CheckpointSchedule(SimpleNamespace(config=config, orders=orders), SimpleNamespace(saved_s=1.0), 0)  # type: ignore[arg-type]
    assert [step for step in range(1, 53) if saving.due(step, 1.0)] == sorted({50, *(range(4, 53, 4) if to else ())})


def test_a_second_disk_that_is_full_is_told_and_touches_no_run(small_disk: Path, tmp_path: Path) -> None:
    fill(small_disk)
    words = [sys.executable, str(TRAINER), "--output_dir", "out", "--max_steps", "4"]
    done = holdfast("run", "--run", "run", "--to", small_disk / "there", "--json", "--", *words, cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert (done.returncode, summary["status"], summary["steps"]) == (0, "finished", 4)
    assert f"the newest state is not at {small_disk / 'there'}" in done.stderr and "No space left on device" in done.stderr
    assert [event["to"] for event in events(tmp_path / "run", "state_not_sent")] == [str(small_disk / "there")]
    told = holdfast("status", tmp_path / "run")
    assert f"nothing is at {small_disk / 'there'}; newer ones are not: " in told.stdout


def test_the_second_place_is_told_by_its_newest_state_and_what_keeps_a_newer_one_away() -> None:
    sent = {"event": "state_sent", "to": "there", "step": 4}
    assert second_place([{"event": "finished"}]) is None
    place = second_place([sent, {"event": "state_not_sent", "to": "there", "step": 9, "reason": "no room"}])
    assert place is not None and place_in_words(place) == "the state after step 4 is at there; newer ones are not: no room"
    assert second_place([{"event": "state_not_sent", "to": "there", "reason": "no room"}, sent]) == {
        "to": "there",
        "step": 4,
        "reason": None,
    }


@pytest.mark.long
def test_a_command_whose_box_is_lost_goes_on_from_the_copy_with_the_same_bits(tmp_path: Path) -> None:
    """With its callback, between two checkpoints; what it had computed and not sent is computed again."""
    pytest.importorskip("transformers")
    told = {"output_dir": "out", "max_steps": 14, "per_device_train_batch_size": 4, "learning_rate": 0.01, "save_steps": 5, "seed": 3}
    options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    script = Path(__file__).parents[1] / "support" / "small_trainer.py"
    words = [sys.executable, str(script), *options, "--report_to", "none", "--use_cpu", "True", "--faults", "hang:9:1"]
    boxes = one, two, alone = [tmp_path / name for name in ("one", "two", "alone")]
    for box in boxes:
        box.mkdir()
    for box in (two, alone):
        (box / "calls.txt").write_text("begun\n")  # its second call: it does not hang
    whole = subprocess.run(words, cwd=alone, capture_output=True, text=True, check=True)
    environment = {"HOLDFAST_SNAPSHOT_SHARE": "1e9", "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    held = ["run", "--run", "run", "--callback", "--to", tmp_path / "shared", "--to-every", "2", "--", *words]
    run = RunFolder(one / "run")
    lost = start(*held, cwd=one, env=environment)
    try:
        wait_until(lambda: run.events_file.exists() and any(event["step"] == 8 for event in events(run.path, "state_sent")))
    finally:
        for pid in [lost.pid, *below(lost.pid)]:
            os.kill(pid, signal.SIGKILL)
        lost.communicate()
    snapshot_of(run).unlink()
    shutil.rmtree(one)
    (tmp_path / "shared/lease.json").unlink()  # as after 90 s of its silence
    done = holdfast(*held, cwd=two, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    assert "fetched the state after step 8" in done.stderr and "going on from out/checkpoint-8" in done.stderr
    assert done.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1], "the same bits"
