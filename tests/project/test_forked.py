"""Processes that start by a fork (support/forked.py) are what an exec makes, to the bits of a trained adapter."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import holdfast, start
from support import forked

Write = Callable[..., Path]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every process is an exec")


def test_a_run_of_forked_processes_ends_with_the_bits_of_one_a_user_starts(config_of: Write, tmp_path: Path) -> None:
    """Another hash seed, and torch imported by each process that needs it and not by the supervisor: the same artifact.

    None of them imports bitsandbytes, which nothing in the config asks for.
    """
    config = config_of(data={"held_out": 0.1})
    forks = holdfast("train", config, "--run", tmp_path / "forks", "--json")
    assert forks.returncode == 0, forks.stderr
    program = "import sys; from holdfast.cli.main import main; code = main(sys.argv[1:]); print('torch' in sys.modules); sys.exit(code)"
    command = [sys.executable, "-c", program, "train", str(config), "--run", str(tmp_path / "execs"), "--json"]
    environment = os.environ | {forked.EXEC: "1", "PYTHONHASHSEED": "7", "PYTHONPROFILEIMPORTTIME": "1"}
    execs = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert execs.returncode == 0, execs.stderr
    summary, has_torch = execs.stdout.splitlines()
    assert has_torch == "False"
    assert json.loads(summary)["artifact_sha256"] == json.loads(forks.stdout)["artifact_sha256"]
    for log in ("attempts/001/output.log", "evaluation.log"):
        imported = [
            line.rpartition("|")[2].strip() for line in (tmp_path / "execs" / log).read_text().splitlines() if "import time:" in line
        ]
        assert "peft" in imported and "bitsandbytes.nn" not in imported, log


def test_a_fork_has_the_command_line_parent_environment_and_files_of_an_exec(tmp_path: Path) -> None:
    child = start("train", tmp_path / "none.yaml", env={"SEEN": "yes"}, cwd=tmp_path)
    seen = Path(f"/proc/{child.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    status = Path(f"/proc/{child.pid}/status").read_text()
    output, _ = child.communicate()
    assert seen[1:4] == [b"-m", b"holdfast", b"train"]
    assert f"PPid:\t{os.getpid()}\n" in status
    assert child.returncode == 2 and "none.yaml" in output


def test_a_killed_fork_is_known_as_killed() -> None:
    """It waits for its input until then: one that ends by itself may be over before the signal comes."""
    command = [sys.executable, "-m", "holdfast", "diagnose", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("change", [{"PYTHONPATH": "/elsewhere"}, {"LD_PRELOAD": "x.so"}, {"SIMULATED_CARD": "{}"}, {forked.EXEC: "1"}])
def test_what_python_reads_at_its_start_makes_it_an_exec(change: dict[str, str]) -> None:
    stem = forked.Stem(None, os.environ | forked.LOADED_WITH, "", 0)  # type: ignore[arg-type]
    assert stem.suits([sys.executable, "-m", "holdfast.trainer", "train"], dict(os.environ))
    assert not stem.suits([sys.executable, "-m", "holdfast.trainer", "train"], os.environ | change)
    assert not stem.suits([sys.executable, "-c", "import holdfast"], dict(os.environ))


def test_a_test_may_ask_for_forks_of_python_files_and_with_another_path() -> None:
    stem = forked.Stem(None, os.environ | forked.LOADED_WITH, "", 0)  # type: ignore[arg-type]
    script, trainer = [sys.executable, "/tests/script.py", "x"], [sys.executable, "-P", "-m", "holdfast.trainer", "train"]
    elsewhere = os.environ | {"PYTHONPATH": "/elsewhere"}
    for command in (script, trainer):
        assert stem.suits(command, elsewhere | {forked.FORK: ""}) and not stem.suits(command, elsewhere)
        assert not stem.suits(command, elsewhere | {forked.FORK: "", forked.EXEC: "1"})
        assert not stem.suits(command, elsewhere | {forked.FORK: "a card's library, of another stem"})
    assert stem.suits(trainer, os.environ | {"HF_ENDPOINT": "http://127.0.0.1:1"}), "read again in the fork"
    assert not stem.suits([sys.executable, "holdfast.py"], dict(os.environ))
