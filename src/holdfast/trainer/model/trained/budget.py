"""AdaLoRA: rank goes where it matters. PEFT's layers and its budget; importances as tensors of the snapshot, so a step can be replayed.

Importances are taken of the weights and gradients an update starts from (Zhang et al. 2023, arXiv 2303.10512, section 3.2). The ranks that
fell stay in the file as zeros, so that it loads as any AdaLoRA adapter does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from peft.tuners.adalora.layer import SVDLinear
from torch import Tensor, nn

from holdfast.trainer.protocol.step_hooks import StepHooks

_NAME = "default"


def stages(steps: int) -> dict[str, int]:
    """Return when the ranks of a run of `steps` steps begin to fall, how often, and how long they rest at its end: PEFT's keys."""
    begin, rest = steps // 10, steps * 3 // 10
    return {"tinit": begin, "tfinal": rest, "deltaT": max(1, steps // 100), "total_step": max(steps, begin + rest + 1)}


class RankBudget(StepHooks):
    """Adds the orthogonality term to the gradients, follows importances, and silences singular values beyond the budget."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        tuner: Any = getattr(model, "base_model")  # noqa: B009  (nn.Module types it as a tensor)
        self.allocator = tuner.rankallocator
        self.config = tuner.peft_config[_NAME]
        self.layers = {name: module for name, module in model.named_modules() if isinstance(module, SVDLinear)}
        for module in self.layers.values():
            module.forward = partial(_forward, module)  # PEFT's adds in place to what may be a view of a narrow weight's product
        self.sensitive = {key: torch.zeros_like(part) for key, part in self._parts().items()}
        self.uncertain = {key: torch.zeros_like(part) for key, part in self._parts().items()}
        self.mask = {name: torch.ones_like(module.lora_E[_NAME]) for name, module in self.layers.items()}

    def _parts(self) -> dict[str, Tensor]:
        return {f"{name}.lora_{side}": getattr(module, f"lora_{side}")[_NAME] for name, module in self.layers.items() for side in "AEB"}

    def state(self) -> dict[str, Tensor]:
        kinds = {"importance": self.sensitive, "uncertainty": self.uncertain, "rank_mask": self.mask}
        return {f"{kind}/{name}": tensor.detach() for kind, tensors in kinds.items() for name, tensor in tensors.items()}

    def gradients(self) -> None:
        weight = self.config.orth_reg_weight
        pairs = [(module.lora_A[_NAME], module.lora_B[_NAME].t()) for module in self.layers.values()]
        factors = [factor for pair in pairs for factor in pair]
        apart = [torch.linalg.matrix_norm(one @ one.t() - torch.eye(len(one), device=one.device)) for one in factors]
        (weight * torch.stack(apart).sum() / len(apart)).backward()

    @torch.no_grad()
    def before(self) -> None:
        for key, part in self._parts().items():
            assert part.grad is not None
            now = (part * part.grad).abs()
            smooth = self.sensitive[key]
            smooth.lerp_(now, 1 - self.config.beta1)
            self.uncertain[key].lerp_((now - smooth).abs_(), 1 - self.config.beta2)

    @torch.no_grad()
    def after(self, step: int, steps: int) -> None:
        for name, value in stages(steps).items():  # a run's length may have changed since the model was built
            setattr(self.allocator.peft_config, name, value)
        last = self.config.total_step - self.config.tfinal
        budget, due = self.allocator.budget_schedule(step)
        if (due and step < last) or step == last:
            self._allot(self.allocator.target_bgt if step == last else budget)
        for name, module in self.layers.items() if due or step == last else ():
            module.lora_E[_NAME].mul_(self.mask[name])

    def _allot(self, budget: int) -> None:
        """Keep the `budget` most important of all singular values."""
        scores = {name: self._score(name) for name in self.layers}
        together = torch.cat(list(scores.values()))
        order = torch.argsort(together, descending=True, stable=True)[:budget]
        kept = torch.zeros_like(together)
        kept[order] = 1.0
        for name, part in zip(scores, torch.split(kept, [len(score) for score in scores.values()]), strict=True):
            self.mask[name].copy_(part[:, None])

    def _score(self, name: str) -> Tensor:
        """Score each singular value by its own importance and the mean ones of its two directions: [rank]."""
        a, e, b = (self.sensitive[f"{name}.lora_{side}"] * self.uncertain[f"{name}.lora_{side}"] for side in "AEB")
        return e[:, 0] + a.mean(1) + b.mean(0)


def _forward(module: Any, x: Tensor) -> Tensor:
    """Compute W x + s B (A E) x / rank, as PEFT's layer does."""
    base: Tensor = module.base_layer(x)
    if module.disable_adapters or module.merged:
        return base
    a, e, b = (getattr(module, f"lora_{side}")[_NAME] for side in "AEB")
    own = module.lora_dropout[_NAME](x.to(a.dtype)) @ (a * e).t() @ b.t()
    out: Tensor = base + (own * (module.scaling[_NAME] / (module.ranknum[_NAME] + 1e-5))).to(base.dtype)
    return out
