"""What hangs around a training: a compiler, a collective at the start, a management library. Each is ended, named and gone round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from conftest import ROOT, events, holdfast, write_table
from holdfast.checkup.examine import examine, verdict
from holdfast.machine.vendor_tools import ask_libraries

BROKEN = {"hangs": ("import time\ntime.sleep(600)\n", "hanging"), "crashes": ("import os\nos.abort()\n", "failed: killed by SIGABRT")}
# a script that compiles (or meets the other ranks) before its first step, and hangs in that unless it is told not to
SCRIPT = """
import os, sys, time
def compile_fx_inner():
    while os.environ.get({variable!r}) != "1":
        time.sleep(1)
print("starting", flush=True)
compile_fx_inner()
for step in range(1, 4):
    print(f"step {{step}}/3", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def path_with(tmp_path: Path) -> Any:
    """PYTHONPATH with a management library that is broken."""

    def make(library: str, body: str) -> str:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / f"{library}.py").write_text(body)
        return os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", ""), str(ROOT / "src")])

    return make


@pytest.mark.parametrize("how", BROKEN)
def test_a_management_library_that_cannot_be_imported_is_named(
    how: str, path_with: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, state = BROKEN[how]
    monkeypatch.setenv("PYTHONPATH", path_with("pynvml", body))
    monkeypatch.setattr("holdfast.machine.vendor_tools.importlib.util", SimpleNamespace(find_spec=lambda name: name == "pynvml" or None))
    found = ask_libraries(deadline_s=1.0 if how == "hangs" else 60.0)
    assert found == {"import pynvml": state}
    findings = examine({"tools": found})
    assert verdict(findings) == "risky" and "importing pynvml" in findings[0].message


ASK = """
from holdfast.trainer.__main__ import main
try:
    main(["no such job"])
except SystemExit:
    pass
try:
    import pynvml
except ModuleNotFoundError:
    print("kept out")
"""


def test_a_trainer_keeps_management_libraries_out(path_with: Any) -> None:
    environment = os.environ | {"PYTHONPATH": path_with("pynvml", BROKEN["crashes"][0])}
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout == "kept out\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.usefixtures("exec_only")
def test_training_goes_round_a_management_library(how: str, path_with: Any, tmp_path: Path) -> None:
    """torch imports pynvml wherever it is; the trainer is not there to wait for it."""
    tree = {
        "task": "tabular",
        "data": {"files": str(write_table(tmp_path / "t.csv", 60)), "held_out": 0},
        "table": {"target": "y"},
        "network": {"hidden": 8, "exports": []},
        "train": {"steps": 3, "threads": 1},
        "run": {"standby": False},
    }
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    done = holdfast(
        "train", tmp_path / "c.yaml", "--run", tmp_path / "run", "--json", env={"PYTHONPATH": path_with("pynvml", BROKEN[how][0])}
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished" and summary["attempts"] == 1


def test_a_compiler_that_hangs_is_ended_named_and_gone_round(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(variable="TORCHDYNAMO_DISABLE"))
    options = ["--run", tmp_path / "run", "--json", "--try", "--hang-s", "8", "--stop-s", "1"]
    done = holdfast("run", *options, "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {incident["cause"] for incident in summary["incidents"]} == {"hang"}
    assert "compile-off" in {event["remedy"] for event in events(tmp_path / "run", "remedy_helped")}


@pytest.mark.parametrize("probe", ["collective", "compiled"])
def test_what_one_device_can_do_without_is_told_and_stops_nothing(probe: str) -> None:
    findings = examine({"probes": {probe: {"outcome": "hung", "detail": "no answer within 60 s"}}})
    assert verdict(findings) == "risky"
    assert any("60 s" in finding.message for finding in findings)
