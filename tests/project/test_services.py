"""The systemd unit and the Slurm script in examples/: accepted by systemd's own check, and run here with real signals."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from conftest import ROOT, events, holdfast, processes_of, wait_until
from holdfast.cli.main import build_parser

Write = Callable[..., Path]
UNIT = ROOT / "examples" / "systemd" / "holdfast@.service"
BATCH = ROOT / "examples" / "slurm" / "train.sbatch"
pytestmark = pytest.mark.usefixtures("no_leftovers")


def script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)
    return file


def holdfast_at(file: Path) -> Path:
    return script(file, f'exec {shlex.quote(sys.executable)} -m holdfast "$@"')


def unit_at(home: Path) -> str:
    """The unit with its placeholders filled in, for one whose home is `home`."""
    if " " in str(home):
        pytest.skip(f"systemd fills a home in behind the splitting at spaces, a test before it; this is {home}")
    return UNIT.read_text().replace("%h", str(home)).replace("%i", "my-run")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_has_nothing_to_say_against_the_units(tmp_path: Path) -> None:
    holdfast_at(tmp_path / "holdfast/.venv/bin/holdfast")
    file = tmp_path / "holdfast@.service"
    file.write_text(unit_at(tmp_path))
    for other in UNIT.parent.glob("holdfast-*.service"):
        (tmp_path / other.name).write_text(other.read_text().replace("%h", str(tmp_path)))
    units = ["holdfast@my-run", "holdfast-learn@helper", "holdfast-serve@helper", "holdfast-watch"]
    command = ["systemd-analyze", "verify", "--user", *(str(tmp_path / f"{one}.service") for one in units)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_systemd_does_to_stop_the_unit_saves_the_step_and_is_not_undone(config_of: Write, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(unit_at(tmp_path))
    service = unit["Service"]
    folder = Path(service["WorkingDirectory"])
    folder.mkdir()
    config_of("my-run", folder, train={"steps": 300})
    run = folder / "runs" / "my-run"
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program) == folder / ".venv/bin/holdfast"
    main = subprocess.Popen([sys.executable, "-m", "holdfast", *words], cwd=folder, stdin=subprocess.DEVNULL)
    wait_until(lambda: (run / "steps.jsonl").exists())
    assert service["KillMode"] == "mixed", "the signal goes to the main process alone"
    main.send_signal(signal.Signals[service["KillSignal"]])
    code = str(main.wait())
    assert code in service["RestartPreventExitStatus"].split() and code in service["SuccessExitStatus"].split()
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert not processes_of(run), "nothing is left for SIGKILL"
    step = len((run / "steps.jsonl").read_text().splitlines())
    assert (run / "checkpoints" / f"step-{step:08d}" / "manifest.json").exists()
    assert set(service["RestartPreventExitStatus"].split()) == {"1", "2", "3", "130"}, "every code that would come again, or was wished for"


def others() -> list[tuple[str, list[str]]]:
    """(place, command) of what learn, serve and watch are started with in examples/."""
    found = []
    for file in sorted(UNIT.parent.glob("holdfast-*.service")):
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        unit.read_string(file.read_text())
        assert (unit["Service"]["WorkingDirectory"], unit["Service"]["Restart"] != "no") == ("%h/holdfast", True)
        found.append((file.name, shlex.split(unit["Service"]["ExecStart"].replace("%i", "helper"))[1:]))
    compose = yaml.safe_load((ROOT / "examples" / "learn" / "compose.yaml").read_text())
    return found + [(name, service["command"]) for name, service in compose["services"].items()]


def test_units_and_compose_file_start_commands_that_are_there() -> None:
    commands = others()
    assert [command[0] for _, command in commands] == ["learn", "serve", "watch", "learn", "serve", "watch"]
    for _, command in commands:
        build_parser().parse_args(command)


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """An environment with a Slurm of two commands: srun runs the task, scontrol notes what it is told."""
    script(tmp_path / "bin/srun", 'exec "$@"')
    script(tmp_path / "bin/scontrol", f'echo "$@" >> {tmp_path}/scontrol.log')
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "HOLDFAST": str(holdfast_at(tmp_path / "bin/holdfast")), "SLURM_JOB_ID": "17"}


def test_a_slurm_job_that_runs_out_of_time_saves_its_step_queues_up_and_goes_on(
    config_of: Write, cluster: dict[str, str], tmp_path: Path
) -> None:
    run, told = tmp_path / "runs" / "my-run", tmp_path / "scontrol.log"
    config_of("my-run", train={"steps": 300})
    command = ["bash", str(BATCH), "my-run.yaml"]
    job = subprocess.Popen(command, cwd=tmp_path, env=cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_until(lambda: (run / "steps.jsonl").exists())
    job.send_signal(signal.SIGUSR1)  # what --signal=B:USR1 sends, to the batch shell alone
    output, _ = job.communicate()
    assert job.returncode == 0, output
    assert told.read_text() == "requeue 17\n"
    assert "job 17 queues up again" in output
    assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
    assert not processes_of(run)
    again = subprocess.run(command, cwd=tmp_path, env=cluster, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert told.read_text() == "requeue 17\n", "a finished run does not queue up"
    assert json.loads((run / "summary.json").read_text())["status"] == "finished"
    assert len(events(run, "restored")) == 2


def test_a_slurm_job_that_ends_otherwise_keeps_its_exit_code_and_its_place(
    config_of: Write, cluster: dict[str, str], tmp_path: Path
) -> None:
    config_of("broken", train={"stepz": 150})
    done = subprocess.run(["bash", str(BATCH), "broken.yaml"], cwd=tmp_path, env=cluster, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "train.stepz" in done.stderr
    run = tmp_path / "runs" / "my-run"
    config_of("my-run", train={"steps": 2000})
    job = subprocess.Popen(["bash", str(BATCH), "my-run.yaml"], cwd=tmp_path, env=cluster, stdout=subprocess.DEVNULL)
    wait_until(lambda: (run / "steps.jsonl").exists())
    assert holdfast("stop", run).returncode == 0
    assert job.wait() == 130
    assert not (tmp_path / "scontrol.log").exists()
