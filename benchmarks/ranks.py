"""What adding gradients in one tree costs beside the backend's own sum, on this machine's CPUs over gloo.

    python benchmarks/ranks.py [--ranks 2] [--millions 20] [--times 20]

Prints the median and the shortest time of a sum, in ms: `tree` is the one that gives the same bits on any number of ranks.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path


def rank(millions: float, times: int) -> None:
    import torch

    from holdfast.trainer.distributed.group import Group
    from holdfast.trainer.distributed.rendezvous import store_of

    torch.set_num_threads(1)
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = Group(number, size, store_of(number, 1), lambda: False)
    block = torch.randn(int(millions * 1e6), generator=torch.Generator().manual_seed(number))
    for name, in_tree in (("all-reduce", False), ("tree", True), ("exchange of facts", None)):
        took = []
        for _ in range(times + 2):
            own = block.clone()
            group.exchange({})
            began = time.perf_counter()
            if in_tree is None:
                group.exchange({"seconds": 1.0})
            else:
                group.sum_([own], in_tree)
            took.append(1e3 * (time.perf_counter() - began))
        if number == 0:
            size_mb = 0 if in_tree is None else 4 * millions
            shown = f"{size} ranks  {name:18} {size_mb:7.1f} MB"
            print(f"{shown}  median {statistics.median(took[2:]):8.2f} ms  shortest {min(took[2:]):8.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--millions", type=float, default=20.0, help="of trained values")
    parser.add_argument("--times", type=int, default=20)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        rank(arguments.millions, arguments.times)
        return
    from holdfast.processes.trainers import Trainers

    own = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:]]
    trainers = Trainers(own, range(arguments.ranks), dict(os.environ), (), stdin=subprocess.DEVNULL)
    while trainers.poll() is None:
        time.sleep(0.05)


if __name__ == "__main__":
    main()
