"""Ten architectures under every layout and precision: loss and gradients of the card beside those of the CPU."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any

from stages.common import Json, Place

VARIANTS: list[Json] = [
    {},
    {"varlen": True},
    {"checkpointed_layers": 99},
    {"activations_on_host": True},
    {"packing": False},
    {"attention": "eager"},
    {"dtype": "fp32"},
]
_APART = {"bf16": 1e-2, "fp32": 1e-5}  # 1 - cosine of all gradients


def run(place: Place) -> None:
    import torch

    from support.architectures import ARCHITECTURES

    names = list(ARCHITECTURES)[: 2 if place.smoke else None]
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    failed, worst, not_varlen = [], {}, []
    for name in names:
        folder, tried = _folder(ARCHITECTURES[name]()), {}
        for more in VARIANTS:
            kind = more.get("dtype", "bf16")
            told = f"{name} {more}"
            try:
                ours, disproved = _gradients(folder, device, **more)
                if kind not in tried:
                    tried[kind], _ = _gradients(folder, "cpu", **{key: value for key, value in more.items() if key == "dtype"})
                apart = 1 - float(torch.nn.functional.cosine_similarity(ours, tried[kind], dim=0))
                print(told, f"1 - cosine {apart:.2e}", disproved, flush=True)
                worst[kind] = max(worst.get(kind, 0.0), apart) if apart == apart else float("inf")
                if not apart <= _APART[kind]:
                    failed.append(f"{told}: 1 - cosine {apart:.1e}")
                if more.get("varlen") and "varlen" in disproved[0]:
                    not_varlen.append(f"{name}: {disproved[1]}")
            except Exception as error:  # noqa: BLE001  # one that fails is an answer, the others are still asked
                failed.append(f"{told}: {type(error).__name__}: {str(error)[:120]}")
                print(told, "FAILED", repr(error), flush=True)
    place.answer("gradients", len(failed), f"of {len(names) * len(VARIANTS)}; " + "; ".join(failed)[:1200])
    place.answer("worst-bf16", worst.get("bf16"), "1 - cosine of all gradients, the worst architecture and layout")
    place.answer("worst-fp32", worst.get("fp32"))
    place.answer("varlen-proven", len(names) - len(not_varlen), f"of {len(names)}; not: " + "; ".join(not_varlen)[:800])


def _folder(config: Any) -> str:
    import torch
    import transformers
    from torch import nn

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    folder = tempfile.mkdtemp()
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _gradients(folder: str, device: str, **more: Any) -> tuple[Any, tuple[Json, str]]:
    """All gradients of the adapter after one pass over its rows, and what the proof had against the layout."""
    import torch

    from holdfast.config.config import Config
    from holdfast.config.settings import Settings
    from holdfast.trainer.model import load as trainers_model
    from holdfast.trainer.tasks.text.proof import disproof
    from holdfast.trainer.tasks.text.task import TextTask
    from support.architectures import LENGTHS, tokens_of

    chosen = {"steps": 1, "samples": 1, "micro_batch_tokens": 64, "threads": 1, "dtype": "bf16", "deterministic": False}
    settings = Settings.model_validate(chosen | more)
    trainers_model.read_model = lambda _: SimpleNamespace(folder=folder, stored="BF16", config={}, shapes={})  # type: ignore[assignment]
    config = Config.model_validate({"model": folder, "data": {"files": "x"}, "adapter": {"r": 4, "dropout": 0.2}})
    task = TextTask(config, settings, tokens_of(), torch.device(device))
    torch.manual_seed(1)
    for _, parameter in sorted(task.model.named_parameters()):
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape) * 0.1)
    disproved: tuple[Json, str] = ({}, "")
    while device != "cpu" and (found := disproof(task))[0]:
        disproved = (disproved[0] | found[0], f"{disproved[1]} {found[1]}".strip())
        settings = settings.model_copy(update=found[0])
        fresh = TextTask(config, settings, tokens_of(), torch.device(device))
        fresh.model.load_state_dict(task.model.state_dict())
        task = fresh
    for batch in task.batches(list(range(len(LENGTHS))), 64):
        loss, _ = task.loss_sum(batch, 1)
        loss.backward()
    return torch.cat([p.grad.float().flatten().cpu() for _, p in sorted(task.model.named_parameters()) if p.requires_grad]), disproved
