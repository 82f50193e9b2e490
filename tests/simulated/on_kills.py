"""`python on_kills.py PREPARED FOLDER KILLS SEED` with the simulated card: train a prepared run, killed again and again; JSON of what came.

The trainers are copies of this process, which has imported everything: a start costs a tenth of what a process of its own would. Each
is the trainer's own code from its registration on, and each kill a SIGKILL, mostly while a snapshot is on its way from the card.
Run by test_kills.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import simulated_card as card

from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_steps, newest_valid
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.trainer.common.job import register
from holdfast.trainer.common.libraries import libraries

with libraries():
    import torch
    from safetensors.torch import load

    from holdfast.trainer.loop.loop import train

SLOW = 150_000  # bytes a second: the copy of a state (60 KB) takes longer than the gradients of the next step
PATIENCE_S = 300


def start(run: RunFolder, place: Path) -> tuple[int, Path]:
    """A trainer for the run's next attempt: its pid and its folder."""
    number = 1 + max(run.attempts(), default=0)
    folder = run.attempt(number)
    folder.mkdir(parents=True)
    orders = {"memory_places": [str(place)], "failures": number - 1, "running_s": 1.0, "faults": None}
    (folder / "launch.json").write_text(json.dumps(orders))
    pid = os.fork()
    if pid == 0:
        log = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            code = train(register(run.path, number))
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            code = 70
        os._exit(code)
    return pid, folder


def ended(pid: int, within_s: float) -> int | None:
    """The exit code of a trainer, None where it still lives after so many seconds."""
    until = time.monotonic() + within_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(0.002)


def train_through(run: RunFolder, kills: int, chance: random.Random) -> dict[str, Any]:
    """Train `run` to its end, with up to so many kills on the way."""
    place = run.path / "memory"
    hit = 0
    while True:
        pid, folder = start(run, place)
        code = None
        if hit < kills:
            early = chance.random() < 0.1  # while the state is read back
            while not early and not (folder / "ready.json").exists() and code is None:
                code = ended(pid, 0.01)
            code = ended(pid, chance.random()) if code is None else code
            if code is None:
                os.kill(pid, signal.SIGKILL)
        code = ended(pid, PATIENCE_S) if code is None else code
        if code != -signal.SIGKILL:
            told = {"kills": hit, "code": code, "log": (folder / "output.log").read_text()[-2000:]}
            return told if code else told | _result(run, place)
        hit += 1


def _result(run: RunFolder, place: Path) -> dict[str, Any]:
    events = [json.loads(line) for line in run.events_file.read_text().splitlines()]
    memory = MemoryFile.open(place)
    assert memory is not None
    newest, checkpoint = memory.newest(), newest_valid(run)[0]
    assert newest is not None
    steps = [(snapshot.step, load(snapshot.state)["step"].item()) for snapshot in (newest, checkpoint.snapshot() if checkpoint else newest)]
    return {
        "steps": [json.loads(line)["step"] for line in run.steps_file.read_text().splitlines()],
        "evaluated": [json.loads(line)["step"] for line in run.evaluations_file.read_text().splitlines()],
        "updates": steps,
        "passed_over": [event for event in events if event["event"] == "checkpoint_passed_over"],
        "checkpoints": len(checkpoint_steps(run)),
        "sha256": hashlib.sha256(newest.artifact).hexdigest(),
    }


def main(prepared: Path, folder: Path, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    chance = random.Random(seed)
    told = []
    wanted = [0, *([20] * (kills // 20)), *([kills % 20] if kills % 20 else [])]  # the first run is left alone
    for number, most in enumerate(wanted):
        path = folder / f"run-{number}"
        shutil.copytree(prepared, path, ignore=shutil.ignore_patterns("attempts", "checkpoints", "*s.jsonl"))  # it may have begun
        card.bytes_per_s(SLOW if number else 0)
        told.append(train_through(RunFolder(path), most, chance))
        if number:
            shutil.rmtree(path)
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
