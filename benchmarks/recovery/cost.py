"""What safety costs while nothing fails: snapshots against none, in alternating blocks of one process, and the CPU time of those who watch.

    python benchmarks/recovery/cost.py --model tiny --rows ROWS.jsonl [--batch 8] [--threads 1] [--blocks 8] [--steps 15]

Blocks of steps with a snapshot after each step and blocks without any take turns in one trainer (its own code, no faults). The second
part runs `holdfast train` and compares CPU seconds of supervisor, shim and writer with those of the trainer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

PARTS = ("supervisor", "nurse", "writer", "trainer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = {
            "model": arguments.model,
            "data": {"files": str(arguments.rows.resolve()), "held_out": 0.01},
            "adapter": {"r": 8},
            "train": {
                "steps": 2 * arguments.blocks * arguments.steps,
                "effective_batch": arguments.batch,
                "max_tokens": 256,
                "threads": arguments.threads,
            },
            "evaluate": {"generate": 0},
            "run": {"standby": False},
        }
        (folder / "c.yaml").write_text(yaml.safe_dump(config))
        watched = watchers(folder)
        ratio, copied, step = snapshots(folder / "run", arguments.blocks, arguments.steps)
    model = Path(arguments.model).name
    print("| model | step ms | waits for its snapshot, ms | of a step | CPU of a step, with to without | watchers' CPU of the trainer's |")
    print("|---|---|---|---|---|---|")
    print(f"| {model} | {step * 1000:.0f} | {copied * 1000:.2f} | {copied / step:.2%} | {ratio:.3f} | {watched:.2%} |")


def snapshots(run: Path, blocks: int, steps: int) -> tuple[float, float, float]:
    """(CPU seconds of a step with to without snapshots, seconds a step waits for its own, seconds of a step), each a median."""
    from holdfast.run.folder import RunFolder
    from holdfast.trainer.common.job import open_job
    from holdfast.trainer.loop.loop import _row
    from holdfast.trainer.state.snapshot import Snapshots
    from holdfast.trainer.step.training_state import build

    (run / "attempts/900").mkdir()
    (run / "steps.jsonl").unlink()
    job = open_job(RunFolder(run), 900, run / "attempts/900", {})
    training = build(job, job.settings(1))
    kept = Snapshots(training, [Path(f"/dev/shm/holdfast-cost-{time.time_ns()}")])
    took: dict[bool, list[float]] = {True: [], False: []}
    waits, step = [], 0
    for block in range(2 * blocks):
        with_snapshots = block % 2 == 0
        kept.settle()
        began, before = time.process_time(), time.perf_counter()
        for _ in range(steps):
            step += 1
            kept.every = 1 if with_snapshots else 10**9
            computed = training.compute(step, training.samples(step), lambda *_: 1.0)
            training.apply(step, computed)
            at = time.perf_counter()
            kept.commit(step, _row(training, step, computed, at - before), durable=False)
            if with_snapshots and block:
                waits.append(time.perf_counter() - at)
        kept.settle()
        if block > 1:
            took[with_snapshots].append((time.process_time() - began) / steps)
    kept.memory.path.unlink()
    return (
        statistics.median(a / b for a, b in zip(took[True], took[False], strict=True)),
        statistics.median(waits),
        statistics.median(took[False]),
    )


def watchers(folder: Path) -> float:
    """CPU seconds of supervisor, shim and writer while steps are committed, as a share of the trainer's."""
    run = folder / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "train", str(folder / "c.yaml"), "--run", str(run)], stdout=subprocess.DEVNULL
    )
    seen: list[dict[str, int]] = []
    while child.poll() is None:
        if (run / "steps.jsonl").exists() and not (run / "attempts/001/result.json").exists():
            seen.append(ticks(child.pid, run))
        time.sleep(0.5)
    whole = [entry for entry in seen if set(entry) == set(PARTS)]
    spent = {part: whole[-1][part] - whole[0][part] for part in PARTS}
    return sum(spent[part] for part in PARTS[:3]) / spent["trainer"]


def ticks(supervisor: int, run: Path) -> dict[str, int]:
    """CPU time so far, in clock ticks, by role."""
    pids = {"supervisor": supervisor}
    for role, file in (("nurse", "nurse.json"), ("trainer", "rank0.json")):
        value = json.loads((run / "attempts/001" / file).read_text())
        pids[role] = value.get("identity", value)["pid"]
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"holdfast.processes.writer" in command and str(run).encode() in command:
            pids["writer"] = int(entry.name)
    found = {}
    for role, pid in pids.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[role] = int(fields[11]) + int(fields[12])
    return found


if __name__ == "__main__":
    main()
