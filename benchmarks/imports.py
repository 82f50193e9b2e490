"""What it costs a process to import what a trainer needs, as `holdfast.trainer.common.libraries` does it and plainly, in turn.

python benchmarks/imports.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

_CHILD = """
import json, resource, sys, time
began, spent = time.perf_counter(), time.process_time()
if sys.argv[1] == "libraries":
    from holdfast.trainer.common.libraries import libraries
    with libraries():
        import holdfast.trainer.loop.loop
else:
    import holdfast.trainer.loop.loop
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([time.perf_counter() - began, time.process_time() - spent, peak]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found: dict[str, list[list[float]]] = {"plainly": [], "libraries": []}
    for _ in range(rounds):
        for how, runs in found.items():
            child = subprocess.run([sys.executable, "-c", _CHILD, how], capture_output=True, text=True, check=True)
            runs.append(json.loads(child.stdout))
    print("| imported | s | CPU s | peak MiB |\n|---|---|---|---|")
    for how, runs in found.items():
        seconds, cpu, peak = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {how} | {seconds:.2f} | {cpu:.2f} | {peak:.0f} |")


if __name__ == "__main__":
    main()
