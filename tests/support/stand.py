"""A step on a small model without a run around it: the parts of a trainer in their order, its state as bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.supervision.finish import rows_asked
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.loss_scale import LossScale
from holdfast.trainer.step.step import Announce, Gradients
from holdfast.trainer.step.training_state import TrainingState
from holdfast.trainer.tasks import task_of
from holdfast.trainer.tasks.text.task import TextTask
from support.architectures import ARCHITECTURES, tokens_of

STEPS = 12


def model_folder(folder: Path, kind: str | Callable[[], Any] = "llama", dtype: torch.dtype = torch.float32, **changed: int) -> Path:
    """A random two-layer model on disk. kind: a name of ARCHITECTURES, or what makes a config."""
    torch.manual_seed(1)
    config = ARCHITECTURES[kind]() if isinstance(kind, str) else kind()
    for name, value in changed.items():
        setattr(config, name, value)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2) if parameter.dim() > 1 else None
    model.to(dtype).save_pretrained(folder)
    return folder


class Stand:
    """Task and optimizer of a config; `step` computes and applies one step of all rows."""

    def __init__(
        self,
        model: Path,
        tokens: TokenSet | None = None,
        settings: dict[str, Any] | None = None,
        folder: Path | None = None,
        **sections: Any,
    ) -> None:
        if folder is not None:
            folder.mkdir(exist_ok=True)
        tree = {
            "model": str(model),
            "data": {"files": "x", "held_out": 0.0},
            "train": {"lr": 1e-2, "schedule": "constant", "warmup": 0.0},
            "adapter": {"r": 4},
        }
        for name, values in sections.items():
            tree[name] = tree.get(name, {}) | values  # type: ignore[operator]
        self.config = Config.model_validate(tree)
        chosen = {"steps": STEPS, "samples": 6, "threads": 1, "micro_batch_tokens": 400, "packing": self.config.adapter.type != "prompt"}
        self.settings = Settings.model_validate(chosen | (settings or {}))
        torch.set_num_threads(self.settings.threads)
        self.task = TextTask(self.config, self.settings, tokens or tokens_of(), torch.device("cpu"), folder)
        self.rows = list(range(len(self.task.tokens)))
        self.optimizer = optimizer_of(self.task.artifact, self.config.train, self.task.step_hooks.rates)
        self.artifact = TensorImage(self.optimizer.kept(), {"format": "pt"})
        scale = LossScale() if self.settings.dtype == "fp16" else None
        self.state = TensorImage(self.optimizer.state() | self.task.state() | (scale.state() if scale else {}))
        self.job: Any = SimpleNamespace(config=self.config)
        parts = (self.job, self.settings, self.task, self.optimizer, self.artifact, self.state, self.task.device, 0.0)
        self.training = TrainingState(*parts, scale=scale)

    def compute(
        self, step: int, budget: int | None = None, rows: list[int] | None = None, announce: Announce = lambda *_: 1.0
    ) -> Gradients:
        settings = self.settings.model_copy(update={"micro_batch_tokens": budget} if budget else {})
        self.job.settings = lambda _: settings
        return self.training.compute(step, rows or self.rows, announce)

    def step(self, step: int, announce: Announce = lambda *_: 1.0) -> float:
        computed = self.compute(step, announce=announce)
        self.training.apply(step, computed)
        return computed.loss

    def saved(self) -> tuple[bytes, bytes]:
        return self.artifact.to_bytes(), self.state.to_bytes()

    def restore(self, saved: tuple[bytes, bytes]) -> None:
        self.training.restore(Snapshot(0, 0, {}, *saved))


def announced_and_asked(folder: Path) -> tuple[int, int]:
    """(rows that the terminal says an evaluation of a finished run will ask for, rows it asks for)."""
    run, asked = RunFolder(folder), []
    config = run.config()
    task_of(config).evaluate(run, config, settings_of_process(read_timeline(run.timeline_file)), asked.append)
    return rows_asked(config, run.plan().rows.held_out), sum(asked)
