"""What a training step asks of a card, traced without one: launches, time at the card's speed, bytes, and bytes the plan counts on.

    python benchmarks/gpu/roofline.py [--only NAME ...] [--tokens N] [--operations] [--json FILE]

Runs the real step on tensors that have shapes and no data (tests/faked), with a torch built for the CPU and a C++ compiler. The time is
a bound for an H100: each kernel takes as long as its bytes at 2.85 TB/s or its products at 640 TFLOP/s; what waits for the host, the gaps
between kernels and how well a real kernel does are not in it. Prints a table row as each case is done.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

CASES: dict[str, dict[str, Any]] = {
    "Qwen2.5-7B r=32": {"model": "qwen7b"},
    "Qwen2.5-7B r=32, dropout 0.05": {"model": "qwen7b", "dropout": 0.05},
    "Qwen2.5-7B r=32, all layers computed again": {"model": "qwen7b", "checkpointed_layers": 28},
    "Qwen2.5-7B r=32, nf4": {"model": "qwen7b", "frozen": "nf4"},
    "Qwen2.5-7B r=32, nf4, dropout 0.05": {"model": "qwen7b", "frozen": "nf4", "dropout": 0.05},
    "Qwen2.5-7B r=32, nf4, each layer alone": {"model": "qwen7b", "frozen": "nf4", "fused": False},
    "Llama-3-8B r=32": {"model": "llama8b"},
    "Qwen2.5-0.5B r=16": {"model": "qwen0.5b", "rank": 16},
    "Qwen2.5-0.5B r=16, dropout 0.05": {"model": "qwen0.5b", "rank": 16, "dropout": 0.05},
}
COLUMNS = ("", "launches", "roofline ms", "of it products", "others", "head", "waits", "peak GB", "plan GB")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--only", nargs="*", default=[], help="cases whose names hold one of these texts")
    arguments.add_argument("--tokens", type=int, default=8192, help="of the step, in samples of 256")
    arguments.add_argument("--liger", action="store_true", help="with Liger's kernels, from the installed liger-kernel")
    arguments.add_argument("--operations", action="store_true", help="what launches most and what takes longest in each case")
    arguments.add_argument("--json", type=Path, help="write all that was counted there")
    asked = arguments.parse_args()
    from faked.step import facts, trace  # brings the pretended card, then torch

    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    counted = {}
    for name, case in CASES.items():
        if asked.only and not any(text in name for text in asked.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            traced = trace(folder=Path(folder), tokens=asked.tokens, liger=asked.liger, **case)
        counted[name] = facts(traced)
        print(_row(name, counted[name]), flush=True)
        if asked.operations:
            seconds = traced.watch.seconds.most_common(12)
            print("  launches:", ", ".join(f"{operation} {count}" for operation, count in traced.watch.launches.most_common(20)))
            print("  ms:", ", ".join(f"{operation} ({part}) {1e3 * s:.1f}" for (part, operation), s in seconds))
    if asked.json:
        asked.json.write_text(json.dumps(counted, indent=1))


def _row(name: str, step: dict[str, Any]) -> str:
    ms = step["ms"]
    times = [f"{ms[kind]:.0f}" for kind in ("all", "products", "others", "head")]
    sizes = [f"{size / 1e9:.1f}" for size in (step["peak"], sum(step["plan"].values()))]
    cells = [name, f"{step['launches']:,}", *times, str(sum(step["waits"].values())), *sizes]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
