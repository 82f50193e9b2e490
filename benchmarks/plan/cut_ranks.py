"""What a plan says of a full fine-tune that 1, 2 and 4 ranks cut between them, and what the first rank's process holds.

    python benchmarks/engine/make_models.py MODEL --size qwen0.5b --layers 4 --vocabulary 8192
    python benchmarks/plan/cut_ranks.py --model MODEL --rows ROWS.jsonl [--on-disk]

While it trains, /proc tells what that process has in main memory, twenty times a second: of its own, of its snapshots in shared memory, of
files (libraries). Pages of snapshots on a disk (--on-disk) are left out: the kernel takes them back when it needs room.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

_MIB = 1 << 20
_RESIDENT = re.compile(r"^Rss\w+:\s+(\d+) kB", re.M)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--on-disk", action="store_true", help="snapshots beside the run, not in shared memory")
    wanted = parser.parse_args()
    print("| ranks | planned MiB | held MiB | planned / held | of the plan, snapshots | by the kernel's count |\n" + "|---" * 6 + "|")
    for ranks in wanted.ranks:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            planned, saved, held, counted = measured(wanted, ranks, Path(folder))
        cells = (ranks, planned // _MIB, held // _MIB, f"{planned / held:.3f}", saved // _MIB, counted // _MIB)
        print("| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else cell for cell in cells) + " |", flush=True)


def measured(wanted: argparse.Namespace, ranks: int, folder: Path) -> tuple[int, int, int, int]:
    """Bytes: planned, of those snapshots, held at the most, and what the run itself reports."""
    config: dict[str, Any] = {
        "model": wanted.model,
        "data": {"files": str(wanted.rows.resolve()), "held_out": 0.0},
        "adapter": {"type": "full"},
        "train": {"steps": wanted.steps, "effective_batch": 8, "max_tokens": 256, "threads": 1, "ranks": ranks, "precision": "fp32"},
        "evaluate": {"generate": 0},
        "run": {"standby": False},
    }
    if ranks > 1:
        config["train"]["fsdp"] = True
    if wanted.on_disk:
        config["save"] = {"snapshot_dir": str(folder / "snapshots")}
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    run = folder / "run"
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "train", str(folder / "c.yaml"), "--run", str(run), "--quiet"], stdout=subprocess.DEVNULL
    )
    held = 0
    while child.poll() is None:
        held = max(held, resident(run, folder))
        time.sleep(0.05)
    if child.returncode:
        raise SystemExit(f"the run ended with {child.returncode}")
    plan = json.loads((run / "plan.json").read_text())
    counted = max(json.loads(line)["peak_bytes"] for line in (run / "steps.jsonl").read_text().splitlines())
    return plan["peak_bytes"], plan["bytes"]["snapshot"], held, counted


def resident(run: Path, folder: Path) -> int:
    """Bytes of the first rank's process in main memory, without those of snapshots on a disk; 0 where it is not there."""
    try:
        pid = json.loads((run / "attempts/001/rank0.json").read_text())["identity"]["pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.M)
    except (OSError, ValueError):
        return 0
    away = sum(
        int(found[1]) for part in parts if str(folder) in part.partition("\n")[0] and (found := re.search(r"^Rss:\s+(\d+) kB", part, re.M))
    )
    return (sum(map(int, _RESIDENT.findall(status))) - away) * 1024


if __name__ == "__main__":
    main()
