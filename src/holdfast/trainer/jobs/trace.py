"""Find the first operation that makes a value not finite out of finite ones, and do it again in fp32 on the CPU. Changes no result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.base.files import Json
from holdfast.trainer.jobs.truth import finite, largest, truth

_UNWRITTEN = ("empty", "new_empty", "resize")  # what they give was not computed


@contextmanager
def traced(model: nn.Module) -> Iterator[list[Json]]:
    """Record, within the context, the first operation with finite inputs and an output that is not, forward or backward.

    -inf is what masks are made of and counts as finite. {module, operation, dtype, device, shapes, largest_input, cpu_fp32_finite, cause,
    says}; None is unknown.
    """
    seen: list[Json] = []
    inside: list[str] = []

    def enter(_module: nn.Module, _given: Any, name: str) -> None:
        inside.append(name)

    def leave(name: str) -> None:
        if name in inside:
            del inside[inside.index(name) :]

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(lambda module, given, name=name: enter(module, given, name)))
        handles.append(module.register_forward_hook(lambda module, given, made, name=name: leave(name)))
    try:
        with _OperationWatch(seen, inside):
            yield seen
    finally:
        for handle in handles:
            handle.remove()


class _OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation, also those of a backward pass."""

    def __init__(self, seen: list[Json], inside: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self.inside = seen, inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.seen:
            return func(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        sound = all(map(finite, given))  # before the call: it may write into its inputs
        before = (
            tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, (args, kwargs)) if _in_place(func) else (args, kwargs)
        )
        made = func(*args, **kwargs)
        name = str(func).removeprefix("aten.").removesuffix(".default")
        if given and sound and not name.startswith(_UNWRITTEN):
            outputs = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
            if not all(map(finite, outputs)):
                module = (self.inside[-1] or "the model") if self.inside else "the loss or the backward pass"
                self.seen.append(_finding(func, name, module, before, [leaf for leaf in given if leaf.numel()], outputs))
        return made


def _in_place(func: Any) -> bool:
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _finding(func: Any, name: str, module: str, call: tuple[Any, Any], given: list[Tensor], made: list[Tensor]) -> Json:
    told = truth(func, call, given)
    biggest = largest(given) if given else None
    limit = min(torch.finfo(leaf.dtype).max for leaf in made)
    cause, says = _judge(told, limit, biggest)
    return {
        "module": module,
        "operation": name,
        "dtype": str(made[0].dtype).removeprefix("torch."),
        "device": str(made[0].device),
        "shapes": [list(leaf.shape) for leaf in given],
        "largest_input": biggest,
        "cpu_fp32_finite": None if told is None else told[0],
        "cause": cause,
        "says": says,
    }


def _judge(told: tuple[bool, float] | None, limit: float, biggest: float | None) -> tuple[str | None, str]:
    if told is None:
        return None, "which could not be done again on the CPU"
    is_finite, size = told
    if is_finite and size <= limit:
        return (
            "nonfinite_kernel",
            f"which is finite in fp32 on the CPU with the same inputs (largest result {size:.3g}): the kernel makes it",
        )
    if is_finite:
        return "nonfinite_numerics", f"whose result, {size:.3g} in fp32 on the CPU, is too large for the number format"
    return (
        "nonfinite_numerics",
        f"which is not finite in fp32 on the CPU either (largest input {biggest:.3g}): weights, rate, data or a mask make it",
    )
