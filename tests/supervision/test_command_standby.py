"""A Python that waits to become a command's next start: that start is as a plain one, or is a plain one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, wait_until
from holdfast.base.files import read_json
from holdfast.callback.standby import MODULES
from holdfast.processes.attempt import Attempt
from holdfast.processes.tree import waits_in
from holdfast.run.command import Command
from holdfast.run.folder import RunFolder
from holdfast.run.types import Ending
from holdfast.supervision.command import attempts
from holdfast.supervision.command import standby as standby_module
from holdfast.supervision.command.attempts import environment_of
from holdfast.supervision.command.command_run import CommandRun
from holdfast.supervision.command.outlived import KeptAttempts
from holdfast.supervision.command.signs import ProgressSigns
from holdfast.supervision.command.standby import CommandStandby
from holdfast.supervision.supervise import View, supervise

SEEN = ProgressSigns(3, 1000, "callback", True, True, True)
SCRIPT = """
import os
os.environ["OF_THE_SCRIPT"] = "early"
import json, multiprocessing, signal, sys
import yaml
from beside import HERE
from holdfast.callback.account import Account

def square(number):
    return number * number

if __name__ == "__main__":
    here = {name: str(globals().get(name)) for name in ("__file__", "__name__", "__spec__", "__package__", "__cached__", "__doc__")}
    here |= {"argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path[0], "cwd": os.getcwd(), "flags": str(sys.flags)}
    here |= {"input": sys.stdin.read(), "seekable": sys.stdin.seekable(), "unbuffered": sys.stdout.write_through, "beside": HERE}
    here |= {"environment": {name: value for name, value in os.environ.items() if "attempts/" not in value}}
    here |= {"signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)]}
    here |= {"nice": os.getpriority(os.PRIO_PROCESS, 0), "oom": open("/proc/self/oom_score_adj").read()}
    here |= {"main": sys.modules["__main__"].__file__}
    here |= {"leads": os.getsid(0) == os.getpid(), "files": sorted(one.name for one in os.scandir("."))}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        here["spawned"] = pool.map(square, [7])
    print(json.dumps(here), flush=True)
    account = Account()
    for step in range(3):
        account.pulse(step=step)
    signal.raise_signal(signal.SIGKILL)
"""


class Watched:
    """A command's run with the standby that is made for it, without a supervisor."""

    def __init__(self, place: Path, *more: str) -> None:
        self.run, self.place = RunFolder(place / "run"), place
        self.run.path.mkdir()
        self.argv, self.more = (sys.executable, "-X", "utf8", "script.py", *more), {"resume": "3"}
        self.command = Command(self.argv, str(place), callback=True)
        self.standby = CommandStandby(self.run)

    def start(self, *added: str, standby: bool = True, **env: str) -> tuple[dict[str, Any], Any]:
        """Start it once, to its end; what it printed, and how its end was written down."""
        orders = {"stdin": [str(self.place / "input"), 2], "terminal": None}
        known = environment_of(self.command, [], self.place / "snapshot") | env
        waiting = self.standby if standby else CommandStandby(self.run)
        attempt = attempts.start(self.run, (*self.argv, *added), self.command.folder, known, orders, waiting, KeptAttempts(self.run))
        assert attempt.shim is not None
        attempt.shim.wait()
        self.newest = attempt
        lines = [line for line in (attempt.folder / "output.log").read_text().splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {}, read_json(attempt.folder / "ending.json")

    def stand_by(self) -> int:
        """Have a standby made; its pid, once it is named."""
        self.standby._looked = 0.0
        self.standby.consider(self.newest, self.command, SEEN)
        assert self.standby.shim is not None, "none was started"
        while (names := read_json(self.run.standby_pids)) is None:
            assert self.standby.shim.poll() is None, (self.run.path / "standby.log").read_text()
            time.sleep(0.01)
        return int(names["standby"]["pid"])


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(CommandStandby, "_pays", lambda *_: True)
    monkeypatch.setattr(standby_module, "host_memory", lambda: {"MemAvailable": 8 << 30})
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("HERE = __file__\nprint('beside', flush=True)\n")
    (tmp_path / "input").write_text("0\nrows\n")
    found = Watched(tmp_path, "--steps", "9")
    yield found
    found.standby.discard()


def test_a_start_from_the_standby_is_as_a_plain_one(watched: Watched) -> None:
    plain, _ = watched.start("--resume", "checkpoint-3")
    assert plain["argv"] == ["script.py", "--steps", "9", "--resume", "checkpoint-3"] and plain["spawned"] == [49], plain
    noted = read_json(watched.run.attempt(1) / MODULES)
    assert noted is not None and {"yaml", "beside"} <= {name for name, _ in noted["modules"]}
    watched.stand_by()
    taken, ending = watched.start("--resume", "checkpoint-3")
    assert ending["stood_by"] and ending["code"] == -9, (watched.run.path / "standby.log").read_text()
    assert taken == plain
    said = (watched.run.path / "standby.log").read_text()
    assert said == "", "nothing of the command itself has run in it"


@pytest.mark.parametrize("fate", ["killed", "stopped", "its shim stopped", "its shim killed", "script changed", "another environment"])
def test_where_the_standby_is_not_there_or_unfit_the_command_is_started_plainly(fate: str, watched: Watched) -> None:
    watched.start()
    pid, shim = watched.stand_by(), watched.standby.shim
    assert shim is not None
    if "script" in fate:
        (watched.place / "script.py").write_text(SCRIPT.replace("early", "otherwise"))
    elif "environment" not in fate:
        struck = shim.pid if "shim" in fate else pid
        os.kill(struck, signal.SIGSTOP if "stopped" in fate else signal.SIGKILL)
        wait_until(lambda: waits_in(struck).get("state") in (("T",) if "stopped" in fate else (None, "Z", "X")))
        if fate == "its shim killed":
            shim.wait()
    told, ending = watched.start("--again", **({"OMP_NUM_THREADS": "3"} if "environment" in fate else {}))
    assert told["argv"][-1] == "--again" and ending["code"] == -9
    assert not ending.get("stood_by") or "script" in fate, "it may read the script after the change"
    assert told["environment"]["OF_THE_SCRIPT"] == ("otherwise" if "script" in fate else "early")
    assert told["environment"].get("OMP_NUM_THREADS") == ("3" if "environment" in fate else os.environ.get("OMP_NUM_THREADS"))
    assert waits_in(pid).get("state") in (None, "Z", "X"), "it is gone"


def test_a_launcher_and_a_short_memory_get_none(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.start()
    monkeypatch.setattr(standby_module, "host_memory", lambda: {"MemAvailable": 1 << 30})
    watched.standby.consider(watched.newest, watched.command, SEEN)
    assert watched.standby.shim is None
    monkeypatch.setattr(standby_module, "host_memory", lambda: {"MemAvailable": 8 << 30})
    watched.stand_by()
    monkeypatch.setattr(standby_module, "host_memory", lambda: {"MemAvailable": 1 << 30})
    watched.standby._looked = 0.0
    watched.standby.consider(watched.newest, watched.command, SEEN)
    assert watched.standby.shim is None, "it makes room for the training"
    file = watched.run.attempt(1) / MODULES
    file.write_text(json.dumps((read_json(file) or {}) | {"pid": os.getpid()}))
    monkeypatch.setattr(standby_module, "host_memory", lambda: {"MemAvailable": 8 << 30})
    other = CommandStandby(watched.run)
    other.consider(Attempt(1, watched.run.attempt(1), None), watched.command, SEEN)
    assert other.shim is None, "a process that another one started noted it"


@pytest.mark.long
def test_a_trainer_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    told = {"max_steps": 14, "per_device_train_batch_size": 4, "learning_rate": 0.01, "save_steps": 5, "seed": 3, "report_to": "none"}
    options = [word for name, value in told.items() for word in (f"--{name}", str(value))]
    words = [sys.executable, str(ROOT / "tests/support/small_trainer.py"), *options, "--use_cpu", "True", "--output_dir"]
    alone = subprocess.run([*words, "alone"], cwd=tmp_path, capture_output=True, text=True, check=True)
    (tmp_path / "calls.txt").unlink()
    monkeypatch.setenv("HOLDFAST_SNAPSHOT_SHARE", "1e9")
    monkeypatch.setattr(CommandStandby, "_pays", lambda *_: True)
    run, said = RunFolder(tmp_path / "run"), list[str]()
    run.path.mkdir()
    command = Command((*words, "out", "--faults", "kill:6:1,kill:9:2,kill:12:3"), str(tmp_path), checkpoints="out", callback=True)
    user = CommandRun(run, command, View(lambda _: None, said.append, lambda: 0))
    watch = attempts.watch

    def then_stand_by(attempt: Attempt, *more: Any) -> Ending:
        ending = watch(attempt, *more)
        user.standby._looked = 0.0
        user.standby.consider(attempt, command, SEEN)  # which waits for its imports when it is given the attempt
        return ending

    monkeypatch.setattr(attempts, "watch", then_stand_by)
    assert supervise(user).done, said
    user.standby.discard()
    user.states.release()
    taken = [bool((read_json(run.attempt(one) / "ending.json") or {}).get("stood_by")) for one in run.attempts()]
    assert taken == [False, True, True, True], (run.path / "standby.log").read_text()
    weights = [line for line in (run.attempt(4) / "output.log").read_text().splitlines() if line.startswith("weights")]
    assert weights == [line for line in alone.stdout.splitlines() if line.startswith("weights")]
