"""The main job on real input: one epoch of LoRA on a row file, the trainer really killed five times on the way.

    python benchmarks/real_input.py ROWS.jsonl [--model FOLDER ...] [--threads N]

Without --model a randomly initialised Qwen2 of about 5M parameters is made, its tokenizer trained on the rows. Prints one line of
a Markdown table per model, as kept in benchmarks/results/recovery.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from make_model import make_model

KILLS = 5
COLUMNS = (
    "model",
    "steps",
    "training loss",
    "held-out loss (base -> tuned)",
    "wall s",
    "kills",
    "steps computed again",
    "s lost to kills",
    "goodput",
    "tokens/s in steps",
)
PHASES = ("forward", "backward", "optimizer", "snapshot", "commit")


def training(model: Path, rows: Path, folder: Path, threads: int | None) -> str:
    """Train one epoch with five kills; a table row."""
    steps = -(-round(0.95 * sum(1 for _ in rows.open("rb"))) // 32)
    faults = [
        {"name": f"kill {n}", "when": {"attempt": n, "step": round(steps * n / (KILLS + 1)), "phase": phase}, "effect": "kill"}
        for n, phase in enumerate(PHASES, 1)
    ]
    config = {
        "model": str(model),
        "data": {"files": str(rows), "held_out": 0.05},
        "adapter": {"r": 8, "dropout": 0.05},
        "train": {"epochs": 1, "effective_batch": 32, "lr": 1e-3, "max_tokens": 256, "threads": threads},
        "save": {"every": 50},
        "faults": faults,
    }
    file = folder / f"{model.name}.yaml"
    file.write_text(yaml.safe_dump(config))
    began = time.perf_counter()
    command = [sys.executable, "-m", "holdfast", "train", str(file), "--run", str(folder / f"run-{model.name}"), "--json"]
    summary = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    seconds = time.perf_counter() - began
    lost = sum(incident["seconds_to_recover"] for incident in summary["incidents"])
    again = sum(incident["lost_steps"] for incident in summary["incidents"])
    loss = summary["loss"]
    cells = (
        model.name,
        summary["steps"],
        f"{loss['first']:.3f} -> {loss['last']:.3f}",
        f"{loss['eval_base']:.3f} -> {loss['eval_tuned']:.3f}",
        f"{seconds:.0f}",
        len(summary["incidents"]),
        again,
        f"{lost:.1f}",
        f"{summary['goodput']:.2f}",
        f"{summary['tokens_per_second']:,.0f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--model", type=Path, nargs="*", default=[])
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "qwen2-5m-random"
        if not arguments.model:
            make_model(made, arguments.rows, "5m")
        for model in arguments.model or [made]:
            print(training(model, arguments.rows, Path(folder), arguments.threads), flush=True)


if __name__ == "__main__":
    main()
