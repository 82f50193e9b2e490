"""A kill with a standby waiting: seconds to the next committed step, and what the standby holds of the card while it waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from stages.common import ROOT, Place, lines, wait_until


def run(place: Place, size: str = "qwen0.5b", kills: int = 3) -> None:
    rows = place.rows(size, 400)
    config = place.config(size, rows, train={"steps": 100_000, "effective_batch": 4}, run={"standby": True})
    folder = place.out / "runs" / place.stage / str(time.time_ns())
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run_folder = folder / "run"
    command = [sys.executable, "-m", "holdfast", "train", str(folder / "config.yaml"), "--run", str(run_folder)]
    with (folder / "log").open("wb") as log:
        supervisor = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=place.environment())
    try:
        costs = [_one_kill(place, run_folder, number) for number in range(1 if place.smoke else kills)]
    finally:
        supervisor.send_signal(signal.SIGTERM)
        try:
            supervisor.wait(60)
        except subprocess.TimeoutExpired:
            supervisor.kill()
        print((folder / "log").read_text()[-3000:])
    place.answer("kill-to-step-s", round(sorted(cost for cost, _ in costs)[len(costs) // 2], 2), f"{len(costs)} kills: {costs}")
    place.answer("lost", sum(lost for _, lost in costs), "committed steps that were gone afterwards")


def _one_kill(place: Place, run: Path, number: int) -> tuple[float, int]:
    sys.path.insert(0, str(ROOT / "benchmarks" / "recovery"))
    from kills import committed, standby_is_ready, waiting_pid

    wanted = committed(run) + 3
    assert wait_until(lambda: committed(run) >= wanted and standby_is_ready(run), 150), "no standby came, or no step"
    if number == 0:
        place.answer("standby-context", _holds_the_card(waiting_pid(run) or 0))
    trainer = lines(run / "events.jsonl")
    pid = _trainer(run)
    before, killed = committed(run), time.time()
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: committed(run) > before, 120), f"no step after the kill; {trainer[-3:]}"
    return round(time.time() - killed, 2), max(0, before - committed(run))


def _trainer(run: Path) -> int:
    import json

    newest = sorted(run.glob("attempts/*/rank0.json"))[-1]
    return int(json.loads(newest.read_text())["identity"]["pid"])


def _holds_the_card(pid: int) -> bool:
    """Whether a process has a device file of a card open."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(str(entry.readlink()))
        except OSError:
            continue
    return any(name.startswith(("/dev/nvidia", "/dev/kfd")) for name in names)
