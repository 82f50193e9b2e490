"""`python interpreted_lora.py CASE`: the kernels of LoRA layers and of the loss, interpreted on the CPU, against torch's operations.

Run by test_fused.py with TRITON_INTERPRET=1. Triton's interpreter keeps bf16 as whole numbers and multiplies them as such: put right here.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from holdfast.base_model.packed import PackedWeights
from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.model.frozen.halves import widened
from holdfast.trainer.model.frozen.quantised import _parameter, _parts
from holdfast.trainer.model.kernels import ops
from holdfast.trainer.model.layers.dropout import StatelessDropout, StepContext
from holdfast.trainer.model.layers.fused import FusedLayers
from holdfast.trainer.model.layers.fused import _widened as fused_widened
from support.architectures import ARCHITECTURES, LENGTHS, assert_equal, assert_equal_in_16_bits, gradients, task_of
from support.rounding import assert_equal_but_for_rounding

CUT = 4  # results in 16 bits are rounded once, and the interpreter cuts bits off

KINDS = {"bf16": torch.bfloat16, "fp32": torch.float32}
SIZES = [
    (1, 1, 1, 1),
    (5, 7, 3, 1),
    (70, 130, 4, 3),
    (33, 64, 16, 2),
    (600, 96, 20, 3),
    (40, 33, 200, 2),
    (70, 1100, 12, 3),
]  # tokens, features, rank, layers


def multiply_halves() -> None:
    def floats(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle.data
        return (handle.data.astype(np.uint32) << 16).view(np.float32)

    def dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        return interpreter.TensorHandle(np.matmul(floats(a), floats(b), dtype=d.data.dtype) + d.data, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = dot


def masks_of(tokens: int, features: int, layers: int) -> tuple[tuple[Tensor, Tensor, int, int], list[Tensor]]:
    """What a kernel is given, and the masks that dropout.py makes of the same."""
    context = StepContext(1)
    modules = [StatelessDropout(0.3, f"module {number}", context).train() for number in range(layers + 2)]
    context.keep_keys(torch.device("cpu"))
    place = torch.arange(tokens)[None]
    context.enter(3, place % 7, place)
    assert context.rows is not None and context.keys is not None
    given = (context.rows.flatten(), context.keys, 1, modules[0].dropped)
    return given, [module.keep(context.rows.flatten(), features) for module in modules[1 : 1 + layers]]


def products(name: str) -> None:
    """Each kernel at odd sizes, with dropout and without, against products of whole matrices."""
    kind = KINDS[name]
    for tokens, features, rank, layers in SIZES:
        for dropping in (True, False):
            torch.manual_seed(0)
            given, masks = masks_of(tokens, features, layers)
            if not dropping:
                given, masks = (None, None, 0, 0), [torch.ones_like(mask) for mask in masks]
            keeps = [mask.float() for mask in masks]
            a = [torch.randn(rank, features) / features**0.5 for _ in range(layers)]
            narrow = [one.to(kind).float() for one in a]
            x, padded = torch.randn(tokens, features).to(kind), ops.padded_rank(rank)
            blocks = [slice(at * padded, at * padded + rank) for at in range(layers)]
            h, wide = ops.project(x, a, *given, 2.0, True)
            wanted = torch.zeros(tokens, layers * padded)
            for block, keep, one in zip(blocks, keeps, narrow, strict=True):
                wanted[:, block] = 2.0 * (x.float() * keep) @ one.t()
            assert_equal_but_for_rounding(h.float(), wanted, CUT if kind == torch.bfloat16 else features, kind)
            assert torch.equal(wide, torch.cat([x, h], 1)) and torch.equal(ops.project(x, a, *given, 2.0, False)[0], h)
            dh = torch.zeros(tokens, layers * padded, dtype=kind)
            for block in blocks:
                dh[:, block] = torch.randn(tokens, rank).to(kind) / rank**0.5
            dx = ops.spread(dh, a, *given, 0.5)
            sums = [0.5 * (dh[:, block].float() @ one) * keep for block, keep, one in zip(blocks, keeps, narrow, strict=True)]
            assert_equal_but_for_rounding(dx.float(), sum(sums, torch.zeros(())), CUT if kind == torch.bfloat16 else rank * layers, kind)
            gathered = ops.gather(x, dh, layers, *given, 0.5).sum(0)
            wanted = torch.zeros(layers * padded, features)
            for block, keep in zip(blocks, keeps, strict=True):
                wanted[block] = 0.5 * dh[:, block].float().t() @ (x.float() * keep)
            assert_equal_but_for_rounding(gathered, wanted, tokens)


def widen(_: str) -> None:
    """Weights in 4 and 8 bits as bitsandbytes widens them, in fp32 bit for bit, with zeros and another matrix behind them or alone."""
    library = bitsandbytes("this test")
    for rows, features, kind, double in ((40, 64, "nf4", False), (9, 320, "nf4", True), (64, 96, "fp4", True), (33, 257, "int8", False)):
        torch.manual_seed(rows)
        shape = torch.Size((rows, features))
        held = _parameter(_parts(torch.randn(shape), PackedWeights(kind, double), library), kind, shape, library, torch.device("cpu"))
        layer = SimpleNamespace(base_layer=SimpleNamespace(weight=held, out_features=rows, in_features=features))
        up = torch.randn(rows, 8).bfloat16()
        for dtype in KINDS.values():
            wanted = widened(held, dtype)
            near = {"rtol": 0.0, "atol": 0.0} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 0.0}  # the interpreter cuts bits off
            torch.testing.assert_close(fused_widened(layer, dtype), wanted, **near)
            behind = torch.cat([wanted, torch.zeros(rows, 16, dtype=dtype), up.to(dtype)], 1)
            torch.testing.assert_close(fused_widened(layer, dtype, up.to(dtype), 16), behind, **near)


def masks(_: str) -> None:
    """The masks bit for bit: of columns of ones, each kernel leaves the mask itself."""
    for tokens, features, layers in ((70, 131, 3), (64, 64, 1), (3, 2, 2)):
        given, wanted = masks_of(tokens, features, layers)
        for at in range(layers):
            dh, a = torch.zeros(tokens, 8 * layers), [torch.ones(1, features)] * layers
            dh[:, 8 * at] = 1.0
            assert torch.equal(ops.spread(dh, a, *given, 1.0), wanted[at].float())
            for token in (0, tokens - 1):
                picked = torch.zeros_like(dh)
                picked[token, 8 * at] = 1.0
                gathered = ops.gather(torch.ones(tokens, features), picked, layers, *given, 1.0).sum(0)
                assert torch.equal(gathered[8 * at], wanted[at][token].float())
            for feature in (0, features - 1):
                a[at] = torch.eye(features)[feature][None]
                assert torch.equal(
                    ops.project(torch.ones(tokens, features), a, *given, 1.0, False)[0][:, 8 * at], wanted[at][:, feature].float()
                )


def loss(name: str) -> None:
    """Losses, hits and gradients of rows shorter and longer than a block, scaled or not, against torch's; what is no number stays none."""
    kind = KINDS[name]
    for rows, columns, scale in ((1, 2, 1.0), (3, 100, 0.25), (2, 4096, 1.0), (3, 9000, 4.0)):
        torch.manual_seed(0)
        logits, labels = (3 * torch.randn(rows, columns)).to(kind), torch.randint(columns, (rows,))
        labels[0] = logits[0].argmax()
        wide = logits.float().clone().requires_grad_()
        wanted = torch.nn.functional.cross_entropy(wide * scale, labels, reduction="none")
        wanted.sum().backward()
        assert wide.grad is not None
        for slopes in (False, True):
            losses, right, before = torch.empty(rows), torch.empty(rows, dtype=torch.bool), logits.clone()
            ops.slopes(logits, labels, losses, right, scale, slopes)
            assert_equal_but_for_rounding(losses, wanted.detach(), columns)
            assert torch.equal(right, wide.detach()[range(rows), labels] == wide.detach().amax(1))
            assert slopes or torch.equal(logits, before)
        assert_equal_but_for_rounding(logits.float(), wide.grad, CUT if kind == torch.bfloat16 else columns, kind)
    for broken in (float("nan"), float("inf")):
        logits = torch.zeros(1, 50, dtype=kind)
        logits[0, 7] = broken
        ops.slopes(logits, torch.zeros(1, dtype=torch.long), losses := torch.zeros(1), torch.zeros(1, dtype=torch.bool), 1.0, True)
        assert losses.isnan().all(), "the gate has to hear of it"


def model(name: str) -> None:
    """Loss and gradients of an architecture, in fp32 and mixed, with dropout and without, layers computed again or not."""
    config, rows = ARCHITECTURES[name](), list(range(len(LENGTHS)))
    for mixed in (False, True):
        for dropout in (0.0, 0.2):
            plain = task_of(config, dropout=dropout, mixed=mixed)
            wanted = gradients(plain, plain.batches(rows, 64))
            task = task_of(config, dropout=dropout, mixed=mixed)
            task.fused = FusedLayers(task.model, task.context, mixed)
            task.losses.head.fused = True
            for layers in (0, 2):
                task.adopt({"checkpointed_layers": layers})
                found = gradients(task, task.batches(rows, 64))
                if mixed:
                    assert_equal_in_16_bits(found, wanted)
                else:
                    assert_equal(found, wanted)
            assert all(not group.waiting for group in task.fused.groups)
            if name in ("llama", "qwen2"):
                assert [len(group.layers) for group in task.fused.groups] == [3, 2, 3, 2, 1, 1, 1, 1]


if __name__ == "__main__":
    multiply_halves()
    case, _, argument = sys.argv[1].partition("-")
    {"products": products, "widen": widen, "masks": masks, "loss": loss, "model": model}[case](argument)
