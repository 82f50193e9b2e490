"""What keeping a Trainer's state after a step costs: of the trained weights, optimizer, scheduler and random states, in shared memory.

    python benchmarks/foreign/snapshot_cost.py --model FOLDER [--steps 40] [--batch 8] [--length 256] [--rank 8]

Trains twice with the callback, on made rows: with a state kept after every step (what one costs), then with the default share of the
time (how many were kept, and what all of them cost together). Prints a row of a Markdown table for each.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Made(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: int, length: int, words: int) -> None:
        self.tokens = torch.randint(0, words, (rows, length), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[at], "labels": self.tokens[at]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| share | trained MiB | states kept | of steps | one costs ms | a step ms | of the time |\n|---|---|---|---|---|---|---|")
    for share in ("1e9", ""):
        with tempfile.TemporaryDirectory() as folder:
            print(measured(arguments, share, Path(folder)), flush=True)


def measured(arguments: argparse.Namespace, share: str, folder: Path) -> str:
    attempt = folder / "run/attempts/001"
    attempt.mkdir(parents=True)
    state = Path("/dev/shm") / f"holdfast-bench-{os.getpid()}"
    os.environ |= {"HOLDFAST_ATTEMPT": str(attempt), "HOLDFAST_SNAPSHOT": str(state)}
    os.environ.pop("HOLDFAST_SNAPSHOT_SHARE", None)
    if share:
        os.environ["HOLDFAST_SNAPSHOT_SHARE"] = share
    from holdfast.callback.packed import SHARE, Packer
    from holdfast.hf import HoldfastCallback

    costs: list[float] = []
    keep = Packer.keep

    def timed(self: Packer, *told: Any) -> None:
        keep(self, *told)
        costs.append(time.perf_counter() - self._began)

    Packer.keep = timed  # type: ignore[method-assign]
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=arguments.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    trained = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
    told = TrainingArguments(
        str(folder / "out"), max_steps=arguments.steps, per_device_train_batch_size=arguments.batch, report_to="none", use_cpu=True,
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    rows = Made(arguments.steps * arguments.batch, arguments.length, model.config.vocab_size)
    trainer = Trainer(model=model, args=told, train_dataset=rows, callbacks=[HoldfastCallback()])
    began = time.perf_counter()
    trainer.train()
    took = time.perf_counter() - began
    Packer.keep = keep  # type: ignore[method-assign]
    state.unlink()
    pulse = json.loads((attempt / "pulse.json").read_text())
    step_ms = 1000 * (took - sum(costs)) / arguments.steps
    one_ms = 1000 * sorted(costs)[len(costs) // 2]
    cells = ("every step" if share else f"{SHARE:.0%}", f"{trained / 2**20:.1f}", pulse["snapshots"], arguments.steps)
    return "| " + " | ".join(map(str, (*cells, f"{one_ms:.1f}", f"{step_ms:.0f}", f"{sum(costs) / took:.2%}"))) + " |"


if __name__ == "__main__":
    main()
