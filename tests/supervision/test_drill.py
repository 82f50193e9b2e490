"""`holdfast drill`: what is rehearsed, and that its verdicts follow from what came of it."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, holdfast, start, wait_until
from holdfast.base.files import read_json
from holdfast.base.identity import alive
from holdfast.config.faults import FaultFile
from holdfast.report.drill_page import line, page
from holdfast.supervision.drill.rehearsals import MISLEADING, Rehearsal, of_faults, quick, rehearsals
from holdfast.supervision.drill.training import judged, struck

TRAINER = ROOT / "tests/support/fake_trainer.py"
FIELDS = {"name", "survived", "identical", "attempts", "found_cause", "found_remedy", "seconds"}


def drill(place: Path, *options: object, code: int = 0) -> list[dict[str, Any]]:
    done = holdfast("drill", "--run", place / "drill", "--json", *options, cwd=place)
    assert done.returncode == code, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)["faults"]
    assert all(set(row) >= FIELDS for row in rows)
    assert json.loads((place / "drill/drill.json").read_text())["faults"] == rows
    assert all(row["name"] in (place / "drill/drill.html").read_text() for row in rows)
    return rows


def test_at_least_forty_faults_are_rehearsed_each_by_its_own_name_and_half_of_them_silent_or_misleading() -> None:
    everything = rehearsals()
    names = {one.name for one in everything}
    assert len(names) == len(everything) >= 40 and {one.name for one in quick(everything)} <= names
    for one in everything:
        FaultFile.model_validate({"faults": list(one.faults)})
    telling = [one for one in everything if any(fault.get("message") not in (None, *MISLEADING) for fault in one.faults)]
    assert len(telling) <= len(everything) / 2
    assert sum(len(one.faults) > 1 for one in everything) >= 8, "pairs"


@pytest.mark.parametrize(
    ("asked", "summary", "row"),
    [
        ({}, {"status": "finished", "artifact_sha256": "a"}, {"survived": True, "identical": True, "found_cause": None}),
        ({}, {"status": "finished", "artifact_sha256": "b"}, {"survived": True, "identical": False}),
        ({}, {"status": "gave_up", "artifact_sha256": "a"}, {"survived": False, "identical": False}),
        ({"same": False}, {"status": "finished", "artifact_sha256": "b"}, {"identical": None}),
        ({"cause": "hang"}, {"status": "finished", "incidents": [{"cause": "hang", "remedy": "resume"}]}, {"found_cause": True}),
        ({"cause": "hang"}, {"status": "finished", "incidents": [{"cause": "unknown", "remedy": "resume"}]}, {"found_cause": False}),
        ({"remedy": True}, {"status": "finished", "incidents": [{"cause": "x", "remedy": "resume"}]}, {"found_remedy": False}),
        ({"remedy": True}, {"status": "finished", "incidents": [{"cause": "x", "remedy": "fp32"}]}, {"found_remedy": True}),
    ],
)
def test_a_verdict_follows_from_what_came_of_it(asked: dict[str, Any], summary: dict[str, Any], row: dict[str, Any]) -> None:
    told = judged(Rehearsal("r", (), **asked), summary, {"artifact_sha256": "a"})
    assert {name: told[name] for name in row} == row


def test_a_fault_that_never_came_was_not_survived(tmp_path: Path) -> None:
    """The row it waits for may be held out, the step beyond the run's end."""
    log = tmp_path / "attempts/001/output.log"
    log.parent.mkdir(parents=True)
    log.write_text("step 3\nfault: torn\nit is not a fault: late\nno kernel image\n")
    assert struck(tmp_path, [{"name": "torn"}, {"name": "x", "message": "no kernel image"}])
    assert not struck(tmp_path, [{"name": "torn"}, {"name": "late"}])
    told = judged(Rehearsal("r", ()), {"status": "finished", "artifact_sha256": "a", "attempts": 1}, {"artifact_sha256": "a"})
    row = told | {"seconds": 1.0, "trials": 0, "struck": False}
    assert "survived" not in line(row) and "NOT STRUCK" in line(row) and "survived" in line(row | {"struck": True})
    assert "NO" in page([row], "")


def test_a_users_own_faults_are_rehearsed_one_at_a_time() -> None:
    assert [one.name for one in of_faults([{"name": "mine", "effect": "kill"}, {"effect": "hang"}])] == ["mine", "fault 2"]


def test_somebody_elses_command_is_broken_from_outside(tmp_path: Path) -> None:
    words = [sys.executable, str(TRAINER), "--output_dir", "out", "--max_steps", "12", "--save_steps", "2", "--step_s", "0.2"]
    rows = drill(tmp_path, "--quick", "--", *words)
    assert [row["name"] for row in rows][:3] == ["killed in the middle", "asked to stop by somebody", "frozen"]
    assert all(row["survived"] and row["identical"] and row["struck"] and row["attempts"] == 2 for row in rows)
    assert rows[2]["found_cause"] and rows[0]["found_cause"] is None
    assert not (tmp_path / "out").exists(), "its own output folder is left alone"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--"], "no command is given behind the two dashes"),
        (["a.yaml", "--", "true"], "a.yaml is for runs of holdfast's own, and a command is given"),
        (["no-such.yaml"], "no such file"),
        (["--faults", "wrong.yaml"], "effect"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, options: list[str], says: str) -> None:
    (tmp_path / "wrong.yaml").write_text("faults: [{effect: explode}]")
    done = holdfast("drill", *options, cwd=tmp_path)
    assert done.returncode == 2 and says in done.stderr


def test_a_command_that_fails_undisturbed_is_told(tmp_path: Path) -> None:
    done = holdfast("drill", "--", "false", cwd=tmp_path)
    assert done.returncode == 1 and "undisturbed, the command did not end well" in done.stderr


def test_an_interrupted_drill_leaves_what_it_knows_and_no_process(tmp_path: Path) -> None:
    words = [sys.executable, str(TRAINER), "--output_dir", "out", "--max_steps", "4", "--step_s", "0.3"]
    child = start("drill", "--run", tmp_path / "drill", "--", *words, cwd=tmp_path)
    began = tmp_path / "drill/01-killed-in-the-middle/run/attempts/001/rank0.json"
    wait_until(lambda: (read_json(began) or {}).get("identity") is not None, 60)
    identity = (read_json(began) or {})["identity"]
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=300)
    assert child.returncode == 130 and not alive(identity)
    assert json.loads((tmp_path / "drill/drill.json").read_text()) == {"faults": []}


@pytest.mark.long
def test_everything_is_survived(tmp_path: Path) -> None:
    rows = drill(tmp_path, "--full")
    assert len(rows) >= 40 and all(row["survived"] and row["identical"] is not False for row in rows)
    assert not [row for row in rows if row["found_cause"] is False or row["found_remedy"] is False]
