"""`python archs_on_card.py NAME:SETTING..` with the simulated card: architectures under settings, there and on the CPU.

Run by test_archs.py. Prints a line of JSON each: where the parameters lie, what the proof found, how far loss and gradients are apart.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import simulated_card  # noqa: F401  (before torch)
import torch
import torch.nn.attention.varlen
import transformers
from torch import Tensor, nn

from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.trainer.model import load as model
from holdfast.trainer.tasks.text import proof
from holdfast.trainer.tasks.text.task import TextTask
from support.architectures import ARCHITECTURES, LENGTHS, tokens_of
from support.varlen import of_torch

SETTINGS = Settings(steps=1, samples=1, micro_batch_tokens=64, threads=1, dtype="bf16")
CHANGES: list[dict[str, Any]] = [
    *({}, {"checkpointed_layers": 99}, {"activations_on_host": True}, {"packing": False}, {"dtype": "fp32"}, {"attention": "eager"}),
    {"varlen": True},
]


def saved(configuration: Any) -> str:
    """The folder of a random model, saved in bf16."""
    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="eager")
    for parameter in base.parameters():
        nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
    folder = tempfile.mkdtemp()
    base.to(torch.bfloat16).save_pretrained(folder)
    return folder


def on_the_card(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The reference of what the variable-length kernel does, for tensors of the card."""

    @wraps(call)  # with its arguments' names, by which it is known
    def kernel(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, _: Tensor, *sizes: int, **named: Any) -> Tensor:
        return call(q.cpu(), k.cpu(), v.cpu(), ends.cpu(), ends.cpu(), *sizes, **named).to(q.device)

    return kernel


def computed(folder: str, device: str, **changes: Any) -> tuple[float, Tensor, Any, str]:
    """Loss, gradients of the adapter in one row, what the proof says, and where the parameters are."""
    model.read_model = lambda _: SimpleNamespace(folder=folder, stored="BF16", config={}, shapes={})  # type: ignore[assignment, return-value]
    config = Config.model_validate({"model": folder, "data": {"files": "x"}, "adapter": {"r": 4, "dropout": 0.2}})
    task = TextTask(config, SETTINGS.model_copy(update=changes), tokens_of(), torch.device(device))
    disproof = proof.disproof(task)  # of a fresh adapter, as at a run's start
    torch.manual_seed(1)
    trained = [parameter for _, parameter in sorted(task.model.named_parameters()) if parameter.requires_grad]
    for parameter in trained:
        parameter.data.copy_(torch.randn(parameter.shape) * 0.1)
    total = 0.0
    for batch in task.batches(list(range(len(LENGTHS))), 64):
        loss, _ = task.loss_sum(batch, 1)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    gradients = torch.cat([parameter.grad.flatten().cpu() for parameter in trained if parameter.grad is not None])
    return total, gradients, disproof, ", ".join(sorted({str(parameter.device) for parameter in task.model.parameters()}))


def main(cells: list[str]) -> None:
    """cells: in the order of their names; a setting is a place in CHANGES."""
    torch.set_num_threads(1)
    torch.nn.attention.varlen.varlen_attn = on_the_card(of_torch)
    for name, group in groupby(cells, lambda cell: cell.partition(":")[0]):
        folder = saved(ARCHITECTURES[name]())
        for setting in (int(cell.partition(":")[2]) for cell in group):
            changes = CHANGES[setting]
            loss, ours, disproof, where = computed(folder, "cuda:0", **changes)
            wanted, theirs, _, _ = computed(folder, "cpu", **{key: value for key, value in changes.items() if key != "varlen"})
            apart = 1 - float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))
            facts = {
                "name": name,
                "setting": setting,
                "changes": changes,
                "where": where,
                "disproof": disproof,
                "apart": apart,
                "off": abs(loss - wanted) / wanted,
            }
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
