"""What trained weights in bf16 cost in loss: rounded at random, to nearest, beside fp32; and what gradients in bf16 lose.

    python benchmarks/engine/rounding.py MODEL [--steps N] [--lr RATE ...] [--rows N] [--threads N]

Full fine-tunes in this process, on the same samples in the same order: rows of a random walk over 512 of the model's tokens, each of which
is followed by one of 8, so that there is something to learn; 10 % of the rows are held out. `nearest` is this engine with torch's own
rounding. The second table: |bf16 - fp32| / |fp32| of the whole first gradient of the same weights, by micro-batches that it is summed over.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.rounding import StochasticRounder
from holdfast.trainer.step.step import compute_gradients, update
from holdfast.trainer.tasks.text.task import Sft
from tables import table

LENGTH, WORDS, FOLLOWING = 64, 512, 8
KINDS = {"fp32": "fp32", "bf16, at random": "bf16", "bf16, to nearest": "bf16"}
AT_RANDOM = StochasticRounder._round


def to_nearest(narrow: torch.Tensor, wide: torch.Tensor, _room: Any, _drawn: Any) -> None:
    narrow.copy_(wide)


def walks(model: str, count: int) -> TokenSet:
    """Rows of a random walk over some of the model's tokens."""
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    rng = np.random.default_rng(0)
    words = rng.choice(vocabulary, WORDS, replace=False).astype(np.int32)
    after = rng.integers(0, WORDS, (WORDS, FOLLOWING))
    at, ids = rng.integers(0, WORDS, count), np.empty((count, LENGTH), np.int32)
    for place in range(LENGTH):
        ids[:, place] = words[at]
        at = after[at, rng.integers(0, FOLLOWING, count)]
    learned = np.ones(count * LENGTH, np.uint8)
    starts = np.arange(count + 1, dtype=np.int64) * LENGTH
    return TokenSet(ids.reshape(-1), learned, starts, np.zeros(count, np.int32), np.arange(1, count + 1), ("walks",), 0, 0)


def built(given: argparse.Namespace, weights: str, lr: float, budget: int) -> tuple[Sft, Config, Settings]:
    train = {"steps": given.steps, "lr": lr, "schedule": "constant", "warmup": 0.0, "effective_batch": given.batch, "weights": weights}
    tree = {"model": given.model, "data": {"files": "walks", "held_out": 0.1}, "adapter": {"type": "full"}, "train": train}
    config = Config.model_validate(tree)
    about = {"steps": given.steps, "samples": given.steps * given.batch, "threads": given.threads, "micro_batch_tokens": budget}
    settings = Settings.model_validate(about)
    torch.set_num_threads(given.threads)
    return Sft(config, settings, walks(given.model, given.rows), torch.device("cpu")), config, settings


def samples_of(task: Sft, settings: Settings, step: int) -> list[int]:
    return task.data.table.samples(step, settings.samples, settings.behind)


def run(given: argparse.Namespace, kind: str, lr: float) -> list[object]:
    StochasticRounder._round = staticmethod(to_nearest if "nearest" in kind else AT_RANDOM)
    task, config, settings = built(given, KINDS[kind], lr, given.batch * LENGTH)
    optimizer, losses = optimizer_of(task.artifact, config.train), []
    for step in range(1, settings.steps + 1):
        computed = compute_gradients(task, optimizer, step, samples_of(task, settings, step), settings.micro_batch_tokens, lambda *_: 1.0)
        losses.append(computed.loss)
        update(optimizer, computed, lr, config.train.max_grad_norm)
    held_out = compute_gradients(task, optimizer, 1, [*map(int, task.data.held_out)], 4096, lambda *_: 1.0).loss
    return [f"{lr:g}", kind, f"{losses[0]:.4f}", f"{np.mean(losses[-10:]):.4f}", f"{held_out:.4f}"]


def gradients(given: argparse.Namespace) -> list[list[object]]:
    found = []
    for parts in (1, 2, 8, given.batch):
        whole: list[torch.Tensor] = []
        for weights in ("bf16", "fp32"):
            task, config, settings = built(given, weights, 1e-4, given.batch * LENGTH // parts)
            for parameter in task.artifact.values():
                parameter.data = parameter.data.bfloat16().to(parameter.dtype)
            optimizer = optimizer_of(task.artifact, config.train)
            compute_gradients(task, optimizer, 1, samples_of(task, settings, 1), settings.micro_batch_tokens, lambda *_: 1.0)
            whole.append(optimizer.gradient.double())
        found.append([parts, f"{float((whole[0] - whole[1]).norm() / whole[1].norm()):.5f}"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, nargs="+", default=[1e-4, 1e-5])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    lines = [run(given, kind, lr) for lr in given.lr for kind in KINDS]
    print(table(("lr", "weights", "first loss", "mean of the last 10", "held out"), lines))
    print()
    print(table(("micro-batches", "error of the gradient"), gradients(given)))


if __name__ == "__main__":
    main()
