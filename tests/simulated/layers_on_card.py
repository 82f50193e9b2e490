"""`python layers_on_card.py` with the simulated card: frozen layers in main memory change no bit, and take two layers of the card.

Run by test_layers.py. Prints a line of JSON each: the case, whether losses and gradients are those of a run without, copies that waited,
and bytes of the card.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # what bitsandbytes compiles takes longer than it computes
import simulated_card as card  # before torch
import torch
import transformers
from archs_on_card import SETTINGS, saved

from holdfast.config.config import Config
from holdfast.trainer.common.refuse import broken_weights
from holdfast.trainer.model import load as model
from holdfast.trainer.model.trained import choose
from holdfast.trainer.tasks.text import proof
from holdfast.trainer.tasks.text.task import Sft
from support.architectures import ARCHITECTURES, GQA, LENGTHS, tokens_of


def with_bitsandbytes() -> None:
    """Let bitsandbytes be imported as where there is no card: its operations on the card are then the CPU's, too."""
    own, torch.cuda.is_available = torch.cuda.is_available, lambda: False
    sys.modules.pop("bitsandbytes", None)
    importlib.import_module("bitsandbytes")
    torch.cuda.is_available = own


with_bitsandbytes()  # before PEFT asks for it
DEVICE = torch.device("cuda:0")
MANY, WIDE = 8, {"num_hidden_layers": 8, "hidden_size": 128, "intermediate_size": 256}


class Case(NamedTuple):
    """A model, what is trained of it, and under which settings."""

    name: str
    model: str = "llama"
    adapter: dict[str, Any] = {}  # noqa: RUF012
    changes: dict[str, Any] = {}  # noqa: RUF012
    train: dict[str, Any] = {}  # noqa: RUF012


CASES = [
    *(Case(name, name, {"dropout": 0.2}, {"dtype": "fp32"}) for name in ARCHITECTURES),
    *(
        Case(f"{kind} bf16", "many", {"type": kind} | more)
        for kind, more in [("lora", {"dropout": 0.2}), ("rslora", {}), ("dora", {}), ("adalora", {}), ("ia3", {}), ("prompt", {})]
    ),
    Case("lora fp32", "many", changes={"dtype": "fp32"}),
    Case("pissa", "many", {"init": "pissa"}),
    Case("half of the layers computed again", "many", changes={"checkpointed_layers": 4}),
    Case("all layers computed again", "many", changes={"checkpointed_layers": 8}),
    Case("activations on the host", "many", changes={"activations_on_host": True, "dtype": "fp32"}, adapter={"type": "ia3"}),
    Case("padded", "many", changes={"packing": False}),
    Case("a module saved beside", "many", {"modules_to_save": ["lm_head"]}),
    Case("the last two layers", "many", {"type": "layers", "layers": 2}),
    Case("dpo", "many", train={"objective": "dpo"}),
    *(Case(kind, "many", {"dropout": 0.2}, {"frozen": kind}) for kind in ("nf4", "int8")),
    Case("nf4 with double quantisation", "many", changes={"frozen": "nf4", "double_quant": True, "dtype": "fp32"}),
]


class Computed(NamedTuple):
    losses: list[float]
    gradients: torch.Tensor
    resting: int  # bytes of the card between steps
    peak: int
    pageable: int
    away: int
    where: str


def computed(case: Case, folder: str, offload: str) -> Computed:
    """Two passes over all samples, the second without gradients."""
    found: Any = SimpleNamespace(folder=Path(folder), stored="BF16", config={}, shapes={})
    model.read_model = choose.read_model = lambda _: found  # type: ignore[assignment]
    train = {"offload": offload} | case.train
    config = Config.model_validate({"model": folder, "data": {"files": "x"}, "adapter": {"r": 4} | case.adapter, "train": train})
    gc.collect()
    before = card.now()
    settings = SETTINGS.model_copy(update={"packing": case.adapter.get("type") != "prompt"} | case.changes)
    task = Sft(config, settings, tokens_of(), DEVICE)
    assert not (broken := broken_weights(task.model)[0]), (offload, broken)
    with task.losses.without_prefix():
        assert proof.disproof(task) == ({}, "") or not settings.packing
    torch.manual_seed(1)
    trained = [parameter for _, parameter in sorted(task.artifact.items())]
    if case.adapter.get("type") != "layers":
        for parameter in trained:
            parameter.data.copy_(torch.randn(parameter.shape) * 0.1)
    batches = task.batches([0, 2, 4, 5] if case.train else list(range(len(LENGTHS))), 64)
    overflow(task, batches[0])
    resting = card.now() - before
    card.reset_peak()
    pageable = card.pageable()
    losses = []
    for batch in batches:
        loss, _ = task.loss_sum(batch, 1)
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    pageable = card.pageable() - pageable
    gradients = torch.cat([parameter.grad.flatten().cpu() for parameter in trained if parameter.grad is not None])
    with torch.no_grad():
        losses += [task.loss_sum(batch, 1)[0] for batch in batches]
    where = ", ".join(sorted({str(parameter.device) for parameter in task.model.parameters()}))
    return Computed([float(loss) for loss in losses], gradients, resting, card.peak() - before, pageable, task.away_bytes, where)


def overflow(task: Sft, batch: Any) -> None:
    """Let a pass run out of memory half way: what follows is to be none the worse."""
    task.loss_sum(batch, 1)
    card.reset_peak()
    task.loss_sum(batch, 1)
    card.limit((card.now() + card.peak()) // 2)
    try:
        task.loss_sum(batch, 1)
    except torch.cuda.OutOfMemoryError:
        card.limit(card.TOTAL)
        return
    raise AssertionError("there was room")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    configurations: dict[str, Callable[[], Any]] = ARCHITECTURES | {"many": lambda: transformers.LlamaConfig(**GQA | WIDE)}
    folders: dict[str, str] = {}
    for case in CASES:
        if names and case.name not in names:
            continue
        folder = folders.get(case.model) or folders.setdefault(case.model, saved(configurations[case.model]()))
        whole, away = (computed(case, folder, offload) for offload in ("off", "layers"))
        assert len(away.gradients), case
        facts = {
            "name": case.name,
            "same": whole.losses == away.losses and torch.equal(whole.gradients, away.gradients),
            "pageable": [whole.pageable, away.pageable],
            "races": card.races(),
            "resting": [whole.resting, away.resting],
            "peak": [whole.peak, away.peak],
            "away": away.away,
            "where": away.where,
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
