"""Keep the trainable state of a Trainer after each step where a death cannot take it (callback/shared.py).

A step is kept when all that belongs to it has come: its row in the log, its evaluation. A death before that goes on from the state
before the step, so each row is written once, and an evaluation that was cut is done again.

What a checkpoint holds beside it (configuration, tokenizer, arguments) is written once, by the model's own save_pretrained,
into a folder that serves as the pattern: the weights' file is later written with the very header that save_pretrained gave it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from holdfast.callback.packed import Packer, random_states, strip

_MOST = 0.2  # of the memory that is available, for the two slots
WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


class CannotSnapshot(Exception):
    """The message says why."""


def live_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the tensors that a checkpoint's file of weights holds, by the names they have there."""
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        return dict(get_peft_model_state_dict(model))
    return dict(model.state_dict())


class CallbackSnapshots:
    """Of one training process. `packer`: where to; `pattern`: the folder of what does not change."""

    def __init__(self, packer: Packer, pattern: Path) -> None:
        self.packer, self.pattern = packer, pattern
        self.weights: dict[str, torch.Tensor] = {}
        self.random: dict[str, Any] | None = None  # states that the step to be kept ended with; None: there is none

    def begin(self, model: Any, processing: Any, args: Any) -> None:
        """Write the pattern, and be sure that its weights are the live ones. Raises CannotSnapshot."""
        trained = sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)
        if 4 * trained * 2 > _MOST * available_bytes():  # weights, two moments, and something; two slots
            raise CannotSnapshot(f"{trained / 2**20:,.0f} MiB of trained weights are too many for this machine's memory")
        shutil.rmtree(self.pattern, ignore_errors=True)
        self.pattern.mkdir(parents=True)
        model.save_pretrained(self.pattern)
        if processing is not None:
            processing.save_pretrained(self.pattern)
        torch.save(args, self.pattern / "training_args.bin")
        files = [self.pattern / name for name in WEIGHTS if (self.pattern / name).exists()]
        if len(files) != 1:
            raise CannotSnapshot("its weights are not saved as one safetensors file")
        self._match(files[0], live_weights(model))
        saved = sum(one.numel() * one.element_size() for one in self.weights.values())  # frozen ones, too
        if 2 * (saved + 3 * trained) > _MOST * available_bytes():
            raise CannotSnapshot(f"{saved / 2**20:,.0f} MiB of weights are too many for this machine's memory, frozen ones included")

    def _match(self, file: Path, live: dict[str, torch.Tensor]) -> None:
        from safetensors import safe_open

        with safe_open(file, framework="pt") as saved:
            for name in saved.keys():  # noqa: SIM118  (it is no dict)
                value = saved.get_tensor(name)
                if name not in live or live[name].dtype != value.dtype or not torch.equal(live[name].detach().cpu(), value):
                    raise CannotSnapshot(f"{name} is saved otherwise than it is held")
                self.weights[name] = live[name].detach()

    def end_step(self) -> None:
        """Note that a step is computed; its state is to be kept where it is time."""
        self.random = random_states() if self.packer.due() else None

    def reopen(self, step: int) -> None:
        """Note that more of a step is to come, or has come: what was kept of it is not the whole."""
        if self.random is not None or self.packer.take_back(step):
            self.random = random_states()

    def keep(self, optimizer: Any, scheduler: Any, state: Any, callbacks: dict[str, Any], flos: float) -> None:
        """Keep the state of the step that waits for it, if any."""
        if self.random is None:
            return
        self.packer.begin()
        tensors = list(self.weights.values())
        facts = {
            "weights": list(self.weights),
            "optimizer": strip(optimizer.state_dict(), tensors),
            "scheduler": strip(scheduler.state_dict() if scheduler is not None else None, tensors),
            "rng": strip(self.random, tensors),
            "state": trainer_state(state, callbacks, flos),
            "step": int(state.global_step),
            "pattern": str(self.pattern),
        }
        self.random = None
        self.packer.keep(tensors, facts)


def trainer_state(state: Any, callbacks: dict[str, Any], flos: float) -> str:
    """Return trainer_state.json as TrainerState.save_to_json writes it, with callbacks and operations as they stand now."""
    tree = dataclasses.asdict(state)
    tree["total_flos"] += flos
    tree["stateful_callbacks"] = {**tree.get("stateful_callbacks", {}), **callbacks}
    return json.dumps(tree, indent=2, sort_keys=True) + "\n"


def available_bytes() -> int:
    """Return the available bytes of the host's memory; 0 where unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as handle:
            return next((int(line.split()[1]) << 10 for line in handle if line.startswith("MemAvailable")), 0)
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
