"""Useful work under failures: the same kills at the same seconds, for holdfast and for what people do today.

    python benchmarks/recovery/goodput.py --model FOLDER --rows ROWS.jsonl --mtbf 60 --window 240 [--only holdfast loop torchrun]
    python benchmarks/recovery/goodput.py --model FOLDER --rows ROWS.jsonl --ranks 4 --every 30 --window 150 --only holdfast torchrun
    python benchmarks/recovery/goodput.py ... --only holdfast torchft --torchft VENV/bin/python
    python benchmarks/recovery/goodput.py --model FOLDER --rows ROWS.jsonl --mtbf 60 --window 600 --wait 1 --at-once \\
        --only loop run callback

In a window of seconds the training process is killed at moments drawn once (exponential, mean `--mtbf`, by seed), or each `--every`
seconds; of several ranks, one that is drawn with them. What a kill costs is the
time from the last step before it to the first step that is further than any before, less one step (the median of the twenty around it, so
that other work on the machine does not count); goodput is the rest of the window over the window. The first start, up to the first step,
does not count for anybody. Peers: transformers' Trainer with resume_from_checkpoint, started again by a shell loop, by
torchrun --max-restarts, or by `holdfast run`, without (run) and with the callback (callback;
no-standby: each start a plain one). `--wait` seconds of each of their steps are
spent asleep, so that several fit on a small machine `--at-once`: then all meet the same kills at the same load.

With torchft the others go on without a rank until it is back, with fewer samples a step: `torchft` is an interpreter that has
torchft-nightly (`pip install --no-deps --pre torchft-nightly`), and the last column is the share of samples of all steps reached that
were trained on; with the others that is all of them.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

PEER = Path(__file__).with_name("peer_trainer.py")
TORCHFT = Path(__file__).with_name("torchft_trainer.py")
_FIRST_STEP_S = 300
OURS = ("holdfast", "unsharded")  # the latter with train.reduction_parts off: a rank's samples are one micro-batch, as the peers' are
RUNS = {**dict.fromkeys(OURS, "run"), "run": "held", "callback": "held", "no-standby": "held"}  # their run folders
COLUMNS = ("contender", "kills", "steps reached", "median step s", "goodput", "steps computed twice", "s lost a kill", "samples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    often = parser.add_mutually_exclusive_group(required=True)
    often.add_argument("--mtbf", type=float)
    often.add_argument("--every", type=float)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--window", type=float, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-steps", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=["holdfast", "loop", "torchrun"])
    parser.add_argument("--wait", type=float, default=0.0, help="seconds each step of the peers' sleeps")
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--torchft", default=sys.executable, metavar="PYTHON")
    arguments = parser.parse_args()
    chance, moments = random.Random(arguments.seed), []
    while (moments[-1] if moments else 0.0) < arguments.window:
        moments.append((moments[-1] if moments else 0.0) + (arguments.every or chance.expovariate(1 / arguments.mtbf)))
    victims = [chance.randrange(arguments.ranks) for _ in moments]
    print(f"kills planned at {', '.join(f'{moment:.0f}' for moment in moments[:-1])} s\n")
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    kills = list(zip(moments[:-1], victims, strict=False))
    with ThreadPoolExecutor(len(arguments.only) if arguments.at_once else 1) as at_once:
        for row in at_once.map(lambda name: in_a_folder(name, arguments, kills), arguments.only):
            print(row, flush=True)


def in_a_folder(name: str, arguments: argparse.Namespace, kills: list[tuple[float, int]]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return contender(name, arguments, kills, Path(folder))


def contender(name: str, arguments: argparse.Namespace, kills: list[tuple[float, int]], folder: Path) -> str:
    """A row of the table. `kills`: seconds from the first step, and which rank."""
    steps_file = (folder / "run" if name in OURS else folder) / "steps.jsonl"
    child = started(name, arguments, folder)
    asked = time.time()
    while not steps_file.exists():
        time.sleep(0.05)
        if time.time() > asked + _FIRST_STEP_S:
            end(child, name, folder)
            raise SystemExit(f"{name} did no step in {_FIRST_STEP_S} s:\n{(folder / 'log').read_text()[-2000:]}")
    began, killed = time.time(), []
    for moment, rank in kills:
        time.sleep(max(0.0, began + moment - time.time()))
        pid = training_pid(name, folder, rank)
        if pid:
            killed.append(time.time())
            os.kill(pid, signal.SIGKILL)
    time.sleep(max(0.0, began + arguments.window - time.time()))
    rows = [json.loads(line) for line in steps_file.read_text().splitlines()]
    end(child, name, folder)
    times = new_steps([row for row in rows if row["time"] <= began + arguments.window])
    lost = [lost_s(times, gap, began + arguments.window) for gap in {bisect.bisect(times, at) for at in killed}]
    reached = max(row["step"] for row in rows)
    twice = len(rows) - reached if name not in OURS else computed_twice(folder / "run")
    step_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(times))
    each = statistics.median(lost) if lost else 0.0
    good, share = 1 - sum(lost) / arguments.window, trained_share(rows, arguments.ranks)
    cells = (name, len(killed), reached, f"{step_s:.3f}", f"{good:.1%}", twice, f"{each:.1f}", f"{share:.1%}")
    return "| " + " | ".join(map(str, cells)) + " |"


def trained_share(rows: list[dict[str, float]], ranks: int) -> float:
    """Of the samples that the steps would have had with all ranks there."""
    there = {row["step"]: row.get("ranks", ranks) for row in rows}
    return sum(there.values()) / (ranks * len(there))


def new_steps(rows: list[dict[str, float]]) -> list[float]:
    """When each step was done that is further than any before."""
    furthest, times = 0.0, []
    for row in rows:
        if row["step"] > furthest:
            furthest = row["step"]
            times.append(row["time"])
    return times


def lost_s(times: list[float], gap: int, end: float) -> float:
    """Seconds lost in the gap before the step with this index, or up to the end where no step came any more."""
    around = [later - earlier for earlier, later in itertools.pairwise(times[max(0, gap - 10) : gap + 11])]
    return (times[gap] if gap < len(times) else end) - times[gap - 1] - statistics.median(around)


def end(child: subprocess.Popen[bytes], name: str, folder: Path) -> None:
    """End a contender with all its processes; what holdfast watches is in a session of its own and is asked to stop."""
    if name in RUNS:
        subprocess.run([sys.executable, "-m", "holdfast", "stop", str(folder / RUNS[name])], stdout=subprocess.DEVNULL, check=False)
    else:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def started(name: str, arguments: argparse.Namespace, folder: Path) -> subprocess.Popen[bytes]:
    orders = {
        "model": arguments.model,
        "rows": str(arguments.rows.resolve()),
        "folder": str(folder),
        "threads": arguments.threads,
        "batch": arguments.batch // arguments.ranks,
        "steps": 100_000,
        "save_steps": arguments.save_steps,
        "wait": arguments.wait,
    }
    (folder / "orders.json").write_text(json.dumps(orders))
    config: dict[str, Any] = {
        "model": arguments.model,
        "data": {"files": orders["rows"], "held_out": 0.01},
        "adapter": {"r": 8},
        "train": {"steps": 100_000, "effective_batch": arguments.batch, "max_tokens": 256, "threads": arguments.threads},
    }
    if arguments.ranks > 1:
        config["train"] |= {"ranks": arguments.ranks} | ({"reduction_parts": "off"} if name == "unsharded" else {})
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    peer = f"{sys.executable} {PEER} {folder}/orders.json"
    torchrun = shutil.which("torchrun") or str(Path(sys.executable).with_name("torchrun"))
    held = f"exec {sys.executable} -m holdfast run --run {folder}/held --checkpoints {folder}/out"
    command = {
        "run": f"{held} -- {peer}",
        "callback": f"{held} --callback -- {peer}",
        "no-standby": f"{held} --callback --no-standby -- {peer}",
        **dict.fromkeys(OURS, f"exec {sys.executable} -m holdfast train {folder}/c.yaml --run {folder}/run"),
        "loop": f"until {peer}; do :; done",
        "torchft": of_torchft(arguments, folder) if name == "torchft" else "",
        "torchrun": f"exec {torchrun} --standalone --nproc-per-node {arguments.ranks} --max-restarts 1000 {PEER} {folder}/orders.json",
    }[name]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(["bash", "-c", command], stdout=log, stderr=log, start_new_session=True)


def of_torchft(arguments: argparse.Namespace, folder: Path) -> str:
    """A lighthouse, and for each rank a torchrun that starts it again."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lighthouse = f"{Path(arguments.torchft).with_name('torchft_lighthouse')} --bind 0.0.0.0:{port} --min_replicas 1 --join_timeout_ms 10000"
    told = f"TORCHFT_LIGHTHOUSE=http://127.0.0.1:{port} NUM_REPLICA_GROUPS={arguments.ranks}"
    torchrun = f"{arguments.torchft} -m torch.distributed.run --standalone --nproc-per-node 1 --max-restarts 1000"
    ranks = [f"REPLICA_GROUP_ID={rank} {told} {torchrun} {TORCHFT} {folder}/orders.json &" for rank in range(arguments.ranks)]
    return "\n".join([f"{lighthouse} &", *ranks, "wait"])


def training_pid(name: str, folder: Path, rank: int) -> int | None:
    if name not in OURS:
        pid = int((folder / f"pid{rank}").read_text())
    else:
        newest = sorted(folder.glob(f"run/attempts/*/rank{rank}.json"))[-1]
        pid = json.loads(newest.read_text())["identity"]["pid"]
    return pid if Path(f"/proc/{pid}").exists() else None


def computed_twice(run: Path) -> int:
    """Committed steps that were computed again, over all restarts."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    restored = [event for event in events if event["event"] == "restored"][1:]
    return sum(max(0, max((row["step"] for row in rows if row["time"] < event["time"]), default=0) - event["step"]) for event in restored)


if __name__ == "__main__":
    main()
