"""The text task, supervised fine-tuning: answers are learned, prompts are given. What the loop asks of it besides a step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast.base.files import Json, read_json, write_json
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import PartialSettings, Settings
from holdfast.data.token_set.length_bias import length_bias
from holdfast.data.token_set.token_set import TokenSet, load_tokens
from holdfast.run.adapter_folder import IS_REFERENCE
from holdfast.run.folder import RunFolder
from holdfast.run.sampling.shuffle import Rows
from holdfast.run.timeline import read_timeline, settings_at
from holdfast.trainer.common.device import prepare_torch, trim_heap
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.refuse import SHOWN, Refusal, put_in
from holdfast.trainer.model.half_proof import halves_differ
from holdfast.trainer.model.load import checkpoint_layers
from holdfast.trainer.protocol.task import Asked, DataSet, Task
from holdfast.trainer.tasks.text.compared import StartValues
from holdfast.trainer.tasks.text.evaluation import compared
from holdfast.trainer.tasks.text.packing import TextBatch
from holdfast.trainer.tasks.text.proof import batch_of, differences, own_logits, slower_in_halves
from holdfast.trainer.tasks.text.rows import parted
from holdfast.trainer.tasks.text.text_model import TextModel
from holdfast.trainer.tasks.text.tokenizer_check import compare_readers

_SMALL = 32  # tokens


class TextTask(TextModel):
    """The task protocol's methods beside those that a step calls."""

    def __init__(self, config: Config, settings: Settings, tokens: TokenSet, device: torch.device, folder: Path | None = None) -> None:
        super().__init__(config, settings, tokens, device, folder)
        self.config = config
        self.data: DataSet = parted(tokens, config)
        if self.compared is not None and config.train.ranks == settings.shards == 1:  # ranks share the rows of a step out among them
            self.compared.order = self.data.table.order(0)

    @classmethod
    def settle(cls, config: Config, settings: Settings) -> tuple[PartialSettings, str]:
        """Return a change to fp32 where bf16 was left to the trainer and the CPU is slower in it; measured before there is a model."""
        if config.train.precision == "auto" and settings.dtype == "bf16" and prepare_torch(settings).type == "cpu":
            return slower_in_halves(read_model(config.model))
        return {}, ""

    @classmethod
    def look_first(cls, run: RunFolder, config: Config) -> Iterator[tuple[str, Json]]:
        """Yield an event where tokenizers disagree. Raises Refusal where they cut the rows otherwise.

        Two tokenizers of 262,144 tokens are 430 MiB: beside a model's weights they would be the most a small one needs.
        """
        differing = compare_readers(config, load_tokens(run.data_file))
        trim_heap()  # they were small blocks, between which no tensor fits
        if differing:
            yield "tokenizers_disagree", differing

    @classmethod
    def build(cls, run: RunFolder, config: Config, settings: Settings, device: torch.device, trial: bool = False) -> TextTask:
        task = cls(config, settings, load_tokens(run.data_file), device, run.path)
        if task.compared is not None:
            task.compared.trial = trial
        if task.compared is not None and task.compared.order is not None and run.timeline_file.exists():
            task.compared.budgets = partial(budgets_of_order, run.timeline_file, len(task.compared.order), config.train.effective_batch)
        begun = run.plan().start_adapter
        if begun and begun.get(IS_REFERENCE) and task.compared is not None:
            task.compared.start = StartValues.copied(task.trained)
            put_in(TensorImage(task.compared.start.values), run.start_adapter, begun, task.form.config)
        if task.held:
            refuse_other_weights(run, settings, task.held.sha256, trial)
        return task

    @classmethod
    def evaluate(cls, run: RunFolder, config: Config, settings: Settings, asked: Asked) -> Json:
        return compared(run, config, settings, asked)

    @property
    def facts(self) -> Json:
        held = {"frozen_sha256": self.held.sha256} if self.held else {}
        return (
            {"attention": self.attends}
            | held
            | ({"frozen_bytes_held": self.held_bytes} if self.held_bytes else {})
            | ({"frozen_bytes_on_host": self.away_bytes} if self.away_bytes else {})
        )

    def remarks(self, fresh: bool) -> Iterator[tuple[str, Json]]:
        """Yield events on longer answers being preferred, and on changes to the model's configuration."""
        if fresh and self.compared is not None and (leaning := length_bias(self.tokens)):
            yield "length_bias", leaning
        for note in self.notes:
            yield "setting_changed", {"what": note}

    def prove(self) -> tuple[PartialSettings, str]:
        if self.held and self.held.fault:
            return {"frozen": "half", "double_quant": False}, f"weights are held in 16 bits: {self.held.fault}"
        with self.losses.without_prefix():
            if self.dtype == torch.float16 and self.config.train.precision == "auto":
                changes, reason = halves_differ(self.model, lambda: own_logits(self))
                if changes:
                    return changes, reason
            return differences(self)

    def refuse(self, samples: list[int], step: int) -> None:
        """Raise Refusal when no token of a step's samples is learned: its mean loss would be 0 / 0.

        The data check lets no such row in.
        """
        if not any((self.tokens.row(number)[1][1:] & 1).any() for number in samples):
            rows = ", ".join(self.data.source(number) for number in samples[:SHOWN])
            text = f"step {step} has nothing to learn: all labels of its {len(samples)} samples are masked ({rows})"
            raise Refusal("no_learning_signal", text, "look into these rows, then start the run afresh with --run DIR")

    def small_batch(self) -> TextBatch:
        return batch_of(self, [self.tokens.ids[:_SMALL]], self.packing)

    def lighter(self, settings: Settings) -> PartialSettings:
        """Return a change that recomputes all decoder layers in backward, where some are not yet."""
        return {"checkpointed_layers": self.layers} if settings.checkpointed_layers < self.layers else {}

    def adopt(self, settings: PartialSettings) -> None:
        checkpoint_layers(self.base, settings["checkpointed_layers"])

    def state(self) -> dict[str, Tensor]:
        """Return what the step hooks keep; dropout is a hash of step and position, and the order of rows follows from the seed."""
        return self.step_hooks.state()


def budgets_of_order(file: Path, rows: int, batch: int) -> Rows:
    """Read from the timeline the micro-batch tokens of the step that each place of the first epoch's order is in: [rows]."""
    entries = read_timeline(file)
    found = np.full(rows, settings_at(entries, 1).micro_batch_tokens)
    for step in sorted({entry.from_step for entry in entries if "micro_batch_tokens" in entry.settings}):
        found[(step - 1) * batch :] = settings_at(entries, step).micro_batch_tokens
    return found


def refuse_other_weights(run: RunFolder, settings: Settings, digest: str, trial: bool) -> None:
    """Note which quantised weights a run is trained on; a trial notes none. Raises Refusal where they are others than it began with."""
    file = run.path / "frozen.json"
    kinds = read_json(file) or {}
    name = f"{settings.frozen}{'-double' if settings.double_quant else ''}-{settings.dtype}"
    if name not in kinds and not trial:
        write_json(file, kinds | {name: digest})
    elif kinds.get(name, digest) != digest:
        text = f"the base model quantises to other {settings.frozen} weights ({digest[:16]}) than this run began with ({kinds[name][:16]})"
        raise Refusal("checkpoint_model_mismatch", text, "use the bitsandbytes of then, or start afresh with --run DIR")


TASK: type[Task[TextBatch]] = TextTask
