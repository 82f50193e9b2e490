"""A run that goes on with another torch or transformers than it had: told once, on record, and proven before the next step."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.files import read_json, write_json
from holdfast.base.versions import __version__
from holdfast.machine.differences import libraries as known_libraries
from holdfast.machine.differences import unlike
from holdfast.machine.read import read_machine
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry
from holdfast.supervision.preparation import libraries
from holdfast.terminal.run_view import Terminal
from holdfast.trainer.distributed.rank import ALONE
from holdfast.trainer.loop import loop

HAD = {"torch": "2.12.0+cu130", "transformers": "5.20.0", "peft": "0.21.2", "bitsandbytes": None}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    write_json(folder.machine_file, {"torch": {"version": HAD["torch"], "devices": []}, "packages": HAD | {"torch": "2.12.0"}})
    folder.event("restored", step=0)
    return folder


def start(run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **now: str | None) -> str:
    """What is told when a run goes on with these versions."""
    has = HAD | now
    monkeypatch.setattr(libraries, "read_torch", lambda ask: {"torch": {"version": has["torch"], "hip": None}})
    monkeypatch.setattr(libraries, "read_packages", lambda: has | {"torch": (has["torch"] or "").partition("+")[0]})
    libraries.tell_of_libraries(run, Terminal(to_stderr=False, quiet=False))
    return "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("now", "began", "goes_on"),
    [
        ({"torch": "2.13.0+cu130"}, "torch 2.12.0+cu130", "torch 2.13.0+cu130"),
        ({"torch": "2.12.0+cpu"}, "torch 2.12.0+cu130", "torch 2.12.0+cpu"),
        ({"transformers": "5.23.0", "peft": "0.20.0"}, "transformers 5.20.0, peft 0.21.2", "transformers 5.23.0, peft 0.20.0"),
    ],
)
def test_other_versions_are_told_once_and_proven_anew(
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    now: dict[str, str | None],
    began: str,
    goes_on: str,
) -> None:
    told = start(run, monkeypatch, capsys, **now)
    assert f"began with {began}, goes on with {goes_on}: bits may differ" in told
    assert start(run, monkeypatch, capsys, **now) == ""
    (event,) = [event for event in run.events() if event["event"] == "libraries_changed"]
    assert event["now"] == now and event["before"] == {name: HAD[name] for name in now}
    machine = read_json(run.machine_file)
    assert machine and machine["torch"]["version"] == (HAD | now)["torch"] and machine["torch"]["devices"] == []

    job: Any = SimpleNamespace(run=run)
    assert loop._with_other_libraries(job, ALONE)
    run.event("restored", step=12)
    assert not loop._with_other_libraries(job, ALONE)


def test_another_processor_is_told_once_and_proven_anew(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Torch chooses its kernels by the CPU: a job that is queued again may come to a node with another one."""
    write_json(run.machine_file, (read_json(run.machine_file) or {}) | {"cpu": {"threads": 2, "name": "one"}})
    cpu = {"threads": 8, "name": "another"}
    monkeypatch.setattr(libraries, "read_cpu", lambda _: cpu)
    assert "began with CPU one, goes on with CPU another: bits may differ" in start(run, monkeypatch, capsys)
    assert start(run, monkeypatch, capsys) == "" and (read_json(run.machine_file) or {})["cpu"] == cpu
    assert loop._with_other_libraries(SimpleNamespace(run=run), ALONE)  # type: ignore[arg-type]


def test_another_holdfast_and_a_choice_of_the_cpus_kernels_are_told_once(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert start(run, monkeypatch, capsys) == "", "a machine file from before either stood in it"
    write_json(run.machine_file, (read_json(run.machine_file) or {}) | {"holdfast": "0.0.9", "env": {"OMP_NUM_THREADS": "1"}})
    began, goes_on = "ATEN_CPU_CAPABILITY not set, holdfast 0.0.9", f"ATEN_CPU_CAPABILITY avx2, holdfast {__version__}"
    assert f"began with {began}, goes on with {goes_on}: bits may differ" in start(run, monkeypatch, capsys)
    assert loop._with_other_libraries(SimpleNamespace(run=run), ALONE)  # type: ignore[arg-type]
    assert start(run, monkeypatch, capsys) == ""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert "goes on with ATEN_CPU_CAPABILITY not set: " in start(run, monkeypatch, capsys)
    assert start(run, monkeypatch, capsys) == ""


def test_a_run_that_begins_keeps_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    known = known_libraries(read_machine(ask_torch=False))
    assert (known["ATEN_CPU_CAPABILITY"], known["holdfast"]) == ("default", __version__)


def test_a_second_upgrade_names_what_the_run_began_with(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(run, monkeypatch, capsys, torch="2.13.0+cu130")
    assert "began with torch 2.12.0+cu130, goes on with torch 2.14.0+cu130" in start(run, monkeypatch, capsys, torch="2.14.0+cu130")


def test_the_same_versions_are_no_news(run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(run, monkeypatch, capsys) == "" and start(run, monkeypatch, capsys, bitsandbytes="0.50.2") == ""
    assert not loop._with_other_libraries(SimpleNamespace(run=run), ALONE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "damaged",
    [{"torch": ["2.5"]}, {"torch": "2.5"}, {"torch": {"version": 7}}, {"packages": ["peft"]}, {"packages": "peft"}, {"packages": None}],
    ids=str,
)
def test_a_machine_file_of_another_form_is_no_bug(
    damaged: dict[str, Any], run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train` ended with 70 on it; what is known of the other part is compared, and a machine of which nothing is known is no other one."""
    machine = read_json(run.machine_file) or {}
    write_json(run.machine_file, machine | damaged)
    told = start(run, monkeypatch, capsys, torch="2.13.0+cu130", peft="0.20.0")
    assert ("torch 2.12.0+cu130" in told) is ("torch" not in damaged) and ("peft 0.21.2" in told) is ("packages" not in damaged)
    after = read_json(run.machine_file)
    assert after and after["packages"]["peft"] == "0.20.0" and after["torch"]["version"] == "2.13.0+cu130"
    assert unlike(machine, machine | damaged | {"cpu": ["x"], "memory_bytes": 10**400, "python": 3}) == []


def test_what_fails_the_proof_is_changed_from_the_next_step_on() -> None:
    amended: list[Entry] = []
    job = SimpleNamespace(amend=amended.append, event=lambda *_, **__: None)
    training: Any = SimpleNamespace(job=job, task=SimpleNamespace(prove=lambda: ({"fused": False}, "other numbers")))
    assert not loop._proven(training, ALONE, 13)
    assert amended == [Entry(13, {"fused": False}, "other numbers")]
