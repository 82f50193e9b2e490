"""`python on_memory.py MODEL` with the simulated card: what a step, an evaluation and the watch do when memory runs out.

Run by test_memory.py.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import simulated_card as card
import torch

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.run.timeline import Entry, settings_at
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.oom import OutOfMemory
from holdfast.trainer.loop import pressure
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.step.training_state import TrainingState
from holdfast.trainer.tasks.text.answer import answers
from holdfast.trainer.tasks.text.evaluation import mean_loss
from holdfast.trainer.tasks.text.task import Sft

DEVICE = torch.device("cuda:0")
ROWS, LENGTH = 32, 64
SETTINGS = Settings(steps=1, samples=1, threads=1, micro_batch_tokens=ROWS * LENGTH, dtype="bf16", deterministic=False)


class Stage:
    """A training state without a run, its device's bytes at rest, and what a whole step needs beside them."""

    def __init__(self, model: str, folder: Path) -> None:
        config = Config.model_validate({"model": model, "data": {"files": "x"}, "adapter": {"r": 4, "dropout": 0.1}})
        ids = np.random.default_rng(0).integers(3, 300, ROWS * LENGTH).astype(np.int32)
        starts, lines = np.arange(ROWS + 1) * LENGTH, np.arange(1, ROWS + 1)
        self.tokens = TokenSet(ids, np.ones(len(ids), np.uint8), starts, np.zeros(ROWS, np.int32), lines, ("r",), 0, 0)
        task = Sft(config, SETTINGS, self.tokens, DEVICE)
        self.told: list[str] = []
        timeline = [Entry(1, SETTINGS.model_dump())]
        job = SimpleNamespace(
            settings=lambda step: settings_at(timeline, step),
            timeline=timeline,
            run=SimpleNamespace(timeline_file=folder / "timeline.jsonl"),
            event=lambda kind, **facts: self.told.append(kind),
            amend=lambda entry, alone=False: timeline.append(entry),
        )
        optimizer = AdamW(task.artifact, config.train)
        artifact, state = TensorImage(task.artifact), TensorImage(optimizer.state())
        self.training = TrainingState(job, SETTINGS, task, optimizer, artifact, state, DEVICE, 0.0)  # type: ignore[arg-type]
        gc.collect()
        self.rest = card.now()
        self.loss = self.step(1)
        self.need = card.peak() - self.rest

    def step(self, number: int) -> float:
        card.reset_peak()
        loss = pressure.compute_within_memory(self.training, number, list(range(ROWS)), lambda *_: 1.0).loss
        self.training.optimizer.clear()
        return loss


def splits(stage: Stage) -> None:
    """Forward and backward run out of memory; nothing of the failed pass lives when the micro-batch is split."""
    left: list[int] = []
    make_smaller = pressure._make_smaller

    def spy(training: Any, step: int, full: OutOfMemory) -> None:
        left.append(card.now() - stage.rest)
        assert full.__context__ is None and full.__traceback__ is None and full.device == "cuda"
        make_smaller(training, step, full)

    pressure._make_smaller = spy
    for step, share in ((2, 0.7), (3, 0.2)):
        card.limit(int(stage.rest + share * stage.need))
        assert abs(stage.step(step) / stage.loss - 1) < 0.05, "other masks, but the same rows"
        assert card.peak() <= stage.rest + share * stage.need
    pressure._make_smaller = make_smaller
    assert len(left) >= 2 and max(left) < 0.02 * stage.need, left
    card.limit(card.TOTAL)


def watches(stage: Stage) -> None:
    """A split is no reason to split again; the allocator that starts over in steps without one is, unless it is short of fitting blocks."""
    budget = stage.training.job.settings(9).micro_batch_tokens
    watch = pressure.MemoryWatch(stage.training, dict)
    assert card.ooms() > 0
    watch.look(16)
    assert stage.training.job.settings(17).micro_batch_tokens == budget, "what came before the watch is dealt with"
    card.limit(int(stage.rest + 0.1 * stage.need))
    stage.step(18)
    card.limit(card.TOTAL)
    budget = stage.training.job.settings(18).micro_batch_tokens
    watch.look(18)
    watch.look(32)
    assert stage.training.job.settings(33).micro_batch_tokens == budget, "the split at step 18 is dealt with"
    _start_over()
    block = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
    del block
    card.reset_peak()
    watch.look(48)
    assert stage.training.job.settings(49).micro_batch_tokens == budget and stage.told[-1] == "memory_fragmented"
    block = torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
    del block
    _start_over()
    watch.look(64)
    floor = max(LENGTH, budget // 2)
    after = stage.training.job.settings(65).micro_batch_tokens
    assert (after, stage.told[-1]) == ((floor, "setting_changed") if budget > LENGTH else (budget, "memory_low"))


def _start_over() -> None:
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device=DEVICE)
    except torch.cuda.OutOfMemoryError:
        return
    raise AssertionError("the card has too much memory")


def no_micro_batch(stage: Stage) -> None:
    """What runs out of memory beside the micro-batches is tried once more, then named."""
    tried: list[int] = []

    def work() -> int:
        tried.append(stage.training.job.settings(70).micro_batch_tokens)
        if len(tried) == 1:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        return tried[-1]

    assert pressure.within_memory(stage.training, 70, work) == tried[0] == tried[1]
    card.limit(card.now())
    try:
        stage.step(71)
    except OutOfMemory as full:
        assert (full.batch, full.what, full.device) == (None, "step 71", "cuda")
    else:
        raise AssertionError("a full card took a micro-batch")
    card.limit(card.TOTAL)


def evaluates(stage: Stage) -> None:
    """The last evaluation goes through in smaller batches, with the same loss and each row counted once."""
    model, rows = stage.training.task.model.eval(), list(range(ROWS))
    stage.training.task.base.set_attn_implementation("sdpa")
    gc.collect()
    before = card.now()
    card.reset_peak()
    free = mean_loss(model, stage.tokens, rows, SETTINGS, DEVICE)
    card.limit(int(before + 0.4 * (card.peak() - before)))
    asked: list[int] = []
    tight = mean_loss(model, stage.tokens, rows, SETTINGS, DEVICE, asked.append)
    assert abs(tight / free - 1) < 1e-3 and sum(asked) == ROWS and len(asked) > 2, (free, tight, asked)
    card.limit(card.TOTAL)
    prompts = [stage.tokens.row(row)[0].tolist() for row in range(16)]
    words: Any = SimpleNamespace(decode=lambda ids, skip_special_tokens: " ".join(map(str, ids)))
    gc.collect()
    before = card.now()
    card.reset_peak()
    said = answers(model, prompts, words, 0, None, 4)
    card.limit(int(before + 0.4 * (card.peak() - before)))
    asked.clear()
    again = answers(model, prompts, words, 0, None, 4, asked.append)
    assert sum(asked) == len(prompts) and len(asked) > 1, asked
    assert sum(one == other for one, other in zip(said, again, strict=True)) >= 12, "rounding may choose another word here and there"
    card.limit(card.TOTAL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    stage = Stage(sys.argv[1], Path(tempfile.mkdtemp()))
    for claim in (splits, watches, no_micro_batch, evaluates):
        claim(stage)
        print(claim.__name__, flush=True)
