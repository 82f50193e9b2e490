"""What OpenMP's waiting costs: the same step with threads that spin while they wait (the library's default) and threads that sleep.

    python benchmarks/wait_policy.py RUN [--rounds N]

RUN is a finished run on the CPU. Each policy is a process of its own, in turn, on a machine as it is and beside a process that
keeps one core busy. Prints medians in seconds per step and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

REPEATS = 10


def child(run: Path) -> None:
    """Time the gradients of the run's last step; one number per line."""
    import time

    from holdfast.run.folder import RunFolder
    from holdfast.trainer.common.job import open_job
    from holdfast.trainer.step.training_state import build

    job = open_job(RunFolder(run), 1, run, {})
    training = build(job, job.settings(1))
    step = RunFolder(run).committed()
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        training.compute(step, training.samples(step), lambda *_: 1.0)
        print(time.perf_counter() - began, flush=True)


def median(run: Path, policy: str | None) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    environment |= {"OMP_WAIT_POLICY": policy} if policy else {}
    command = [sys.executable, "-W", "ignore", __file__, str(run), "--child"]
    lines = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return statistics.median(float(line) for line in lines[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.run.resolve())
        return
    print("| machine | default, s per step | PASSIVE, s per step | ratio |\n|---|---|---|---|")
    for busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        pairs = [(median(arguments.run, None), median(arguments.run, "PASSIVE")) for _ in range(arguments.rounds)]
        if other:
            other.kill()
            other.wait()
        default, passive = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
        name = "beside a busy process" if busy else "as it is"
        print(f"| {name} | {default:.3f} | {passive:.3f} | {default / passive:.2f} |", flush=True)


if __name__ == "__main__":
    main()
