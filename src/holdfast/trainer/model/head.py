"""The loss of label positions alone: the output layer sees no other position, and logits exist a chunk at a time.

Backward never holds [labels x vocabulary]: a chunk's gradient with respect to the hidden states is taken while its logits are there.
On a GPU one kernel makes a chunk's gradient of its logits, in their place (kernels/loss.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holdfast.run.types import LOGITS_AT_ONCE, WIDENED_ROWS
from holdfast.trainer.model.kernels import ops
from holdfast.trainer.model.layers.mixed import HALF, HALF_TYPES, padded

_NARROW = tuple(HALF_TYPES.values())
_BYTES_AT_ONCE = 8 * LOGITS_AT_ONCE  # of logits that become gradients: no more than torch's operations take for their copies


class OutputHead:
    """The output layer of a causal language model and what its architecture does to logits: scaling, then soft-capping.

    fused: let the kernel compute losses and gradients where it knows the layer; what it is proven for (fused_proof.py).
    """

    def __init__(self, model: Any, fused: bool = False) -> None:
        self.fused = fused
        self._layer: Any = model.get_output_embeddings()
        config = model.config.get_text_config()
        self.cap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)

    @property
    def layer(self) -> nn.Module:
        """The output layer; where it is one that PEFT trains a copy of, the copy, unless the adapter is switched off."""
        layer = self._layer
        if not hasattr(layer, "modules_to_save"):
            return layer  # type: ignore[no-any-return]
        return layer.original_module if layer.disable_adapters else layer.modules_to_save[layer.active_adapters[0]]  # type: ignore[no-any-return]

    def loss_sum(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (sum of cross-entropies in fp32, number of labels with the largest logit).

        hidden: [labels, size]; labels: [labels].
        """
        losses, right = self.losses(hidden, labels)
        return losses.sum(dtype=torch.float64).to(torch.float32), right.sum()

    def losses(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return (cross-entropy in fp32, whether it has the largest logit) of each label.

        hidden: [labels, size]; labels: [labels].
        """
        layer = self.layer
        if type(layer) is nn.Linear and not layer.weight.requires_grad:
            wide = hidden.dtype in _NARROW and layer.weight.dtype == torch.float32  # a model whose matrices were trained
            given = hidden.float() if wide else hidden
            if self.fuses(given.dtype):
                fused: tuple[Tensor, Tensor] = _FusedHeadLoss.apply(given, labels, layer.weight, self.scale)  # type: ignore[no-untyped-call]
                return fused
            found: tuple[Tensor, Tensor] = _FrozenHeadLoss.apply(  # type: ignore[no-untyped-call]
                given, labels, layer.weight, layer.bias, self.scale, self.cap
            )
            return found
        rows = _rows_at_once(len(labels), layer)
        parts = zip(torch.split(hidden, rows), torch.split(labels, rows), strict=True)
        chunks = [checkpoint(self._loss_of_chunk, part, wanted, use_reentrant=False) for part, wanted in parts]
        losses, right = zip(*chunks, strict=True)
        return torch.cat(losses), torch.cat(right)

    def fuses(self, kind: torch.dtype) -> bool:
        """Return whether the kernel computes the losses of hidden states of dtype `kind`: of a plain frozen layer in the same dtype."""
        layer = self.layer
        plain = type(layer) is nn.Linear and not layer.weight.requires_grad and layer.bias is None and self.cap is None
        return self.fused and plain and layer.weight.dtype == kind != torch.float16

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits in fp32, all at once: [positions, size] to [positions, vocabulary]."""
        layer = self.layer
        if type(layer) is nn.Linear and layer.weight.dtype == torch.float32 and hidden.dtype in _NARROW:
            half = hidden.dtype
            product = F.linear(hidden, layer.weight.to(half), None if layer.bias is None else layer.bias.to(half))
        else:
            product = layer(hidden)
        logits = product.float() * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap

    def _loss_of_chunk(self, hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return each_loss(self.logits(hidden), labels)


def each_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return (cross-entropy, whether it has the largest logit) of each label. logits: [labels, vocabulary] in fp32."""
    picked = logits.detach().gather(1, labels[:, None])
    return F.cross_entropy(logits, labels, reduction="none"), (picked >= logits.detach().amax(1, keepdim=True))[:, 0]


class _FrozenHeadLoss(torch.autograd.Function):
    """Forward takes loss and gradient of each chunk in one visit, backward only scales: two matrix products in all."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, labels: Tensor, weight: Tensor, bias: Tensor | None, scale: float, cap: float | None
    ) -> tuple[Tensor, Tensor]:
        rows = max(1, min(len(labels), LOGITS_AT_ONCE // weight.shape[0]))
        exact = torch.float32 if hidden.dtype == torch.float16 else hidden.dtype  # not scaled yet: in fp16 the small ones would be lost
        grad = torch.empty_like(hidden, dtype=exact) if ctx.needs_input_grad[0] else None
        ctx.kind = hidden.dtype
        losses = hidden.new_empty(len(labels), dtype=torch.float32)
        right = torch.empty(len(labels), dtype=torch.bool, device=hidden.device)
        for start in range(0, len(labels), rows):
            part, numbers = hidden[start : start + rows], labels[start : start + rows]
            logits = _product(part, weight)
            if bias is not None:
                logits.add_(bias)
            slope = _bend(logits, scale, cap)
            logits.sub_(logits.amax(1, keepdim=True))
            picked = logits.gather(1, numbers[:, None])
            right[start : start + rows] = picked[:, 0] == 0  # the largest logit is 0 now
            sums = logits.exp_().sum(1, keepdim=True)
            losses[start : start + rows] = (sums.log() - picked)[:, 0]
            if grad is None:
                continue
            logits.div_(sums)
            logits[torch.arange(len(numbers), device=numbers.device), numbers] -= 1.0
            if slope is not None:
                logits.mul_(slope)
            if scale != 1.0:
                logits.mul_(scale)
            _back(logits, weight, grad[start : start + rows])
        ctx.save_for_backward(*([] if grad is None else [grad]))
        ctx.mark_non_differentiable(right)
        return losses, right

    @staticmethod
    def backward(ctx: Any, outer: Tensor, _right: None) -> Any:
        (grad,) = ctx.saved_tensors
        return (grad * outer.to(grad.dtype)[:, None]).to(ctx.kind), None, None, None, None, None


class _FusedHeadLoss(torch.autograd.Function):
    """The same with the kernel: a chunk's logits become their gradient where they are, and are never widened."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, labels: Tensor, weight: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        rows = max(1, _BYTES_AT_ONCE // hidden.element_size() // weight.shape[0])
        wanted = ctx.needs_input_grad[0]
        grad = torch.empty_like(hidden) if wanted else hidden.new_empty(0)
        losses = hidden.new_empty(len(labels), dtype=torch.float32)
        right = torch.empty(len(labels), dtype=torch.bool, device=hidden.device)
        for start in range(0, len(labels), rows):
            part = slice(start, start + rows)
            logits = F.linear(hidden[part], weight)
            ops.slopes(logits, labels[part], losses[part], right[part], scale, wanted)
            if wanted:
                torch.mm(logits, weight, out=grad[part])
            del logits  # before the next chunk's are there
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(right)
        return losses, right

    @staticmethod
    def backward(ctx: Any, outer: Tensor, _right: None) -> Any:
        (grad,) = ctx.saved_tensors
        return grad * outer.to(grad.dtype)[:, None], None, None, None


def _product(hidden: Tensor, weight: Tensor) -> Tensor:
    """Compute hidden weight' in fp32; a weight stored in a narrower dtype is widened block by block."""
    if weight.dtype == hidden.dtype:
        narrow = hidden.dtype in _NARROW
        return F.linear(padded(hidden) if narrow else hidden, weight)[: len(hidden)].float()
    logits = hidden.new_empty(len(hidden), len(weight), dtype=torch.float32)
    for start in range(0, len(weight), WIDENED_ROWS):
        torch.mm(hidden, weight[start : start + WIDENED_ROWS].to(hidden.dtype).t(), out=logits[:, start : start + WIDENED_ROWS])
    return logits


def _back(slopes: Tensor, weight: Tensor, grad: Tensor) -> None:
    """Write slopes weight into `grad`."""
    if weight.dtype == HALF == grad.dtype:
        grad.copy_((padded(slopes.to(HALF)) @ weight)[: len(slopes)])
        return
    if weight.dtype == grad.dtype:
        torch.mm(slopes, weight, out=grad)
        return
    grad.zero_()
    for start in range(0, len(weight), WIDENED_ROWS):
        grad.addmm_(slopes[:, start : start + WIDENED_ROWS], weight[start : start + WIDENED_ROWS].to(grad.dtype))


def _bend(logits: Tensor, scale: float, cap: float | None) -> Tensor | None:
    """Scale and soft-cap in place; return the derivative of the capping, None where there is none."""
    if scale != 1.0:
        logits.mul_(scale)
    if cap is None:
        return None
    logits.div_(cap).tanh_()
    slope = 1.0 - logits * logits
    logits.mul_(cap)
    return slope


def _rows_at_once(labels: int, layer: nn.Module) -> int:
    vocabulary = max(parameter.shape[0] for parameter in layer.parameters())
    return max(1, min(labels, LOGITS_AT_ONCE // vocabulary))
