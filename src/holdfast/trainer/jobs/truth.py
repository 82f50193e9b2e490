"""Do one operation again in fp32 on the CPU, with the same inputs. What is not known to be the same is unknown, never guessed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

_MOST_BYTES = 2 << 30  # of inputs in fp32 that are copied to the CPU, and of an attention matrix there
_ATTENTION = {"query", "key", "value"}
_NO_MATTER = _ATTENTION | {"compute_log_sumexp", "return_debug_mask", "enable_gqa"}  # change no value of the result
_UNDERSTOOD = {"attn_mask", "attn_bias", "is_causal", "scale"}


def truth(func: Any, call: tuple[Any, Any], given: list[Tensor]) -> tuple[bool, float] | None:
    """Compute the operation in fp32 on the CPU: (whether the result is finite, its largest value); None where that cannot be done."""
    if sum(leaf.numel() * 4 for leaf in given) > _MOST_BYTES:
        return None
    args, kwargs = tree_map(_on_cpu, call)
    named = _arguments_by_name(func, args, kwargs)
    try:
        made = _attention(named) if "attention" in str(func) and named.keys() >= _ATTENTION else func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return None
    outputs = [leaf.float() for leaf in tree_leaves(made) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel()]
    if not outputs:
        return None
    return all(map(finite, outputs)), largest(outputs)


def largest(tensors: list[Tensor]) -> float:
    """Return the largest absolute value in tensors that are not empty, -inf left out."""
    return max(float(leaf.masked_fill(leaf.isneginf(), 0).abs().max()) for leaf in tensors)


def finite(tensor: Tensor) -> bool:
    """Return whether no value is NaN or Inf. -inf is what masks are made of and counts as finite."""
    return tensor.device.type == "meta" or not bool((torch.isnan(tensor) | torch.isposinf(tensor)).any())


def _on_cpu(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return torch.float32 if leaf.is_floating_point else leaf
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.detach().to("cpu", torch.float32) if leaf.is_floating_point() else leaf.detach().cpu()


def _arguments_by_name(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; {} where the operation does not tell their names."""
    schema = getattr(func, "_schema", None)
    return {} if schema is None else {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs


def _attention(named: dict[str, Any]) -> Tensor | None:
    """Compute attention as defined, with its mask; a row that sees nothing is 0 / 0. None where an argument is not understood.

    Not torch's own function, which gives 0 for such a row and so would accuse a kernel of what the mask does.
    """
    foreign = [named[name] for name in named.keys() - _NO_MATTER - _UNDERSTOOD]
    query, key, value = named["query"], named["key"], named["value"]
    if any(isinstance(one, Tensor) or one for one in foreign) or query.dim() != 4 or query.shape[1] % key.shape[1]:
        return None
    if query.shape[:-1].numel() * key.shape[2] * 4 > _MOST_BYTES:
        return None
    groups = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    scale = named.get("scale")
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if named.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    for mask in (named.get("attn_mask"), named.get("attn_bias")):
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    made: Tensor = torch.softmax(scores, dim=-1) @ value
    return made
