"""What holdfast's callback costs a Trainer, as processor seconds of one process: rounds without it, with it, and with it but no state kept.

    OMP_NUM_THREADS=1 python benchmarks/foreign/callback_cost.py --model FOLDER [--steps 12] [--rounds 5] [--batch 2] [--full]

Each round trains anew, the ways in turn; the first two steps of each are not counted. Prints a row of a Markdown table: processor seconds
of a step without it (median of the rounds), what each way costs beside that (median of the rounds' differences), and what was spent inside
the callback's own hooks, which no other work on the machine changes much: all of it, and by what was done there.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from snapshot_cost import Made
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

WAYS = ("without", "callback", "no states")
BEFORE = 2  # steps that are not counted: what is made once


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    for name, value in {"steps": 12, "rounds": 5, "batch": 2, "length": 128, "rank": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--full", action="store_true", help="train all weights")
    arguments = parser.parse_args()
    spent: Counter[str] = Counter()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for at in range(len(WAYS)):
                way = WAYS[(at + number) % len(WAYS)]
                found[way].append(one_training(arguments, way, Path(folder) / f"{number}-{at}", spent))
    print(row(arguments, found, spent))


def row(arguments: argparse.Namespace, found: dict[str, list[float]], spent: Counter[str]) -> str:
    alone = statistics.median(found["without"])
    more = [f"{statistics.median(a / b - 1 for a, b in zip(found[way], found['without'], strict=True)):+.1%}" for way in WAYS[1:]]
    total = sum(found["callback"]) * arguments.steps
    parts = ", ".join(f"{name} {seconds / total:.2%}" for name, seconds in spent.most_common() if name != "hooks")
    kind = "all weights" if arguments.full else f"LoRA, rank {arguments.rank}"
    name = Path(arguments.model).name
    cells = (name, kind, f"{1000 * alone:.0f}", *more, f"{spent['hooks'] / total:.2%}", parts)
    return "| " + " | ".join(cells) + " |"


def one_training(arguments: argparse.Namespace, way: str, folder: Path, spent: Counter[str]) -> float:
    """Return its processor seconds a step."""
    attempt = folder / "run/attempts/001"
    attempt.mkdir(parents=True)
    state = Path("/dev/shm") / f"holdfast-bench-{os.getpid()}"
    os.environ["HOLDFAST_ATTEMPT"] = str(attempt)
    os.environ.pop("HOLDFAST_SNAPSHOT", None)
    if way == "callback":
        os.environ["HOLDFAST_SNAPSHOT"] = str(state)
    from holdfast.callback import hf

    hf._first.clear()
    hf._trainings.clear()
    clock = Clock(arguments.steps)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    if not arguments.full:
        model = get_peft_model(model, LoraConfig(r=arguments.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
    told = TrainingArguments(
        str(folder / "out"), max_steps=arguments.steps + BEFORE, per_device_train_batch_size=arguments.batch, report_to="none",
        use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    rows = Made((arguments.steps + BEFORE) * arguments.batch, arguments.length, model.config.vocab_size)
    trainer = Trainer(model=model, args=told, train_dataset=rows, callbacks=[clock])
    if way != "without":
        trainer.add_callback(measured(hf.HoldfastCallback(trainer), spent if way == "callback" else Counter(), clock))
    trainer.train()
    state.unlink(missing_ok=True)
    return (clock.ended - clock.began) / arguments.steps


class Clock(TrainerCallback):  # type: ignore[misc]
    """Reads the processor's clock before the first step that counts and where the training ends."""

    def __init__(self, steps: int) -> None:
        self.steps, self.began, self.ended = steps, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == BEFORE:
            self.began = time.process_time()

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.ended = time.process_time()


def measured(callback: Any, spent: Counter[str], clock: Clock) -> Any:
    """Have the hooks of a callback, and what they do, counted in processor seconds from the first step that counts on."""
    for name in ("step_begin", "pre_optimizer_step", "step_end", "log", "epoch_begin", "epoch_end", "save"):
        count(callback, f"on_{name}", "hooks", spent, clock)
    count(callback, "_look", "fingerprints", spent, clock)
    count(callback, "_keep", "states", spent, clock)
    count(callback, "_note", "rows", spent, clock)
    count(callback.gate, "passes", "gate", spent, clock)
    count(callback.account, "pulse", "pulse", spent, clock)
    return callback


def count(owner: Any, name: str, what: str, spent: Counter[str], clock: Clock) -> None:
    call = getattr(owner, name)

    @functools.wraps(call)
    def counted(*arguments: Any, **keywords: Any) -> Any:
        began = time.process_time()
        try:
            return call(*arguments, **keywords)
        finally:
            spent[what] += time.process_time() - began if clock.began and not clock.ended else 0.0

    setattr(owner, name, counted)


if __name__ == "__main__":
    main()
