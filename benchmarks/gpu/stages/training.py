"""A step in this process, built of the trainer's own parts: what it takes in milliseconds and bytes under given settings."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import dataclass
from typing import Any

from stages.common import Json, Place, median

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when a context is made; deterministic products need it


@dataclass
class Stand:
    """A task, its optimizer, and the samples of its only step."""

    task: Any
    optimizer: Any
    settings: Any
    samples: list[int]
    plan: Any
    device: Any
    notes: list[str]

    def step(self, number: int, announce: Any = lambda *_: 1.0) -> Any:
        """Gradients and update of one step."""
        from holdfast.trainer.step.step import compute_gradients, update

        computed = compute_gradients(self.task, self.optimizer, number, self.samples, self.settings.micro_batch_tokens, announce)
        update(self.optimizer, computed, 1e-5, 1.0)
        return computed


def build(
    place: Place, size: str, tokens: int, length: int = 256, r: int = 16, dropout: float = 0.0, frozen: str = "auto", **changes: Any
) -> Stand:
    """The parts a run on rows of `length` tokens would have, `tokens` of them a step. `changes` win over the plan's settings."""
    from holdfast.base_model.folder import read_model
    from holdfast.config.config import Config
    from holdfast.machine.read import read_machine
    from holdfast.planning.plan import make_plan, settings_of
    from holdfast.trainer.common.device import prepare_torch
    from holdfast.trainer.optim.optimizer import AdamW
    from holdfast.trainer.tasks.text.task import Sft

    tokens, length = (tokens, length) if not place.smoke else (256, 64)
    count = tokens // length
    tree = {"model": str(place.model(size)), "data": {"files": "rows.jsonl"}, "adapter": {"r": r, "alpha": 2 * r, "dropout": dropout}}
    train = {"precision": "bf16", "max_tokens": length, "effective_batch": count, "frozen": frozen}
    config = Config.model_validate(tree | {"train": train})
    machine = read_machine(place.out, ask_torch=True)
    lengths = {"max": length, "mean": float(length), "rows": count, "step": tokens}
    model = read_model(config.model)
    plan = make_plan(config, model, machine, lengths)
    settings = settings_of(config, plan, machine, 2, steps=30, samples=count).model_copy(update={"micro_batch_tokens": tokens} | changes)
    device, notes = prepare_torch(settings), []
    rows = _rows(count, length, int(model.config["vocab_size"]))
    task = Sft(config, settings, rows, device)
    while found := _disproved(task, notes):
        settings = settings.model_copy(update=found)
        del task
        release()
        task = Sft(config, settings, rows, device)
    return Stand(task, AdamW(task.artifact, config.train), settings, list(range(count)), plan, device, notes)


def _disproved(task: Any, notes: list[str]) -> Json:
    """What has to change before this task may train, as a run's start would find it; its reason goes to `notes`."""
    from holdfast.trainer.tasks.text import proof

    for name in ("fused_differ", "kernels_differ", "disproof"):
        found, why = getattr(proof, name)(task) if hasattr(proof, name) else ({}, "")
        if found:
            notes.append(why)
            return dict(found)
    return {}


def _rows(count: int, length: int, vocabulary: int) -> Any:
    import numpy as np

    from holdfast.data.token_set.token_set import TokenSet

    random = np.random.default_rng(0)
    learned = np.zeros(count * length, np.uint8).reshape(count, length)
    learned[:, int(length * 0.6) :] = 1
    starts = np.arange(count + 1, dtype=np.int64) * length
    ids = random.integers(3, min(vocabulary, 3000), count * length).astype(np.int32)
    return TokenSet(ids, learned.ravel(), starts, np.zeros(count, np.int32), np.arange(1, count + 1), ("rows.jsonl",), 0, 0)


def synchronise() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def measured(place: Place, size: str, tokens: int = 8192, times: int = 6, **how: Any) -> Json:
    """{ms, loss, loading, built, allocated, reserved, planned, settings, notes} of a step: median time, bytes of the device at their most.

    loading: until the model was there and proven; built: what it holds then; allocated, reserved: in the steps.
    """
    import torch

    release()
    stand = build(place, size, tokens, **how)
    on_card = torch.cuda.is_available()
    loading = torch.cuda.max_memory_allocated() if on_card else 0
    release()
    built = torch.cuda.memory_allocated() if on_card else 0
    times, took, loss = (2 if place.smoke else times), [], 0.0
    for number in range(1, times + 3):
        synchronise()
        began = time.perf_counter()
        loss = stand.step(number).loss
        synchronise()
        took.append(1e3 * (time.perf_counter() - began))
    facts: Json = {
        "ms": round(median(took[2:]), 2),
        "loss": loss,
        "loading": loading,
        "built": built,
        "allocated": torch.cuda.max_memory_allocated() if on_card else 0,
        "reserved": torch.cuda.max_memory_reserved() if on_card else 0,
        "planned": stand.plan.peak_bytes - stand.plan.bytes.context,
        "settings": {
            name: getattr(stand.settings, name) for name in ("varlen", "liger", "fused", "frozen", "deterministic", "checkpointed_layers")
        },
        "notes": stand.notes,
    }
    del stand
    release()
    print(facts, flush=True)
    return facts
