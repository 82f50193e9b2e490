"""What a trainer refuses to train on: another attempt would meet the same, so its reason goes to the user. Repairs nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.base.files import Json
from holdfast.base_model.folder import broken_tensor
from holdfast.trainer.common.images import TensorImage

SHOWN = 5
_LARGEST = torch.finfo(torch.float32).max


class Refusal(Exception):
    """The input cannot be trained on. `cause` as in a diagnosis; `hint`: the next command or edit."""

    def __init__(self, cause: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.cause, self.hint = cause, hint


def refuse_broken_weights(model: nn.Module, source: str) -> None:
    """Raise Refusal when a weight of the model is NaN or Inf, naming each tensor."""
    broken, count = broken_weights(model)
    if broken:
        listed = "\n".join(f"  {told}" for told in broken[:SHOWN])
        more = f"\n  and {len(broken) - SHOWN} more tensors" if len(broken) > SHOWN else ""
        text = f"{len(broken)} of {count} weights of {source} hold NaN or Inf:\n{listed}{more}"
        raise Refusal("nonfinite_numerics", text, "download the model again; then rerun the same command to resume")


def broken_weights(model: nn.Module, most: float = _LARGEST, frozen_alone: bool = False) -> tuple[list[str], int]:
    """Return (names of the weights with values that are not finite or larger than `most`, in words; number of weights looked at).

    frozen_alone: leave out what is trained. One pass that allocates nothing the size of a weight.
    """
    wanted = ((name, weight) for name, weight in model.named_parameters() if not (frozen_alone and weight.requires_grad))
    weights = {name: own_piece(weight).detach() for name, weight in wanted if weight.is_floating_point()}
    extremes = {name: torch.stack(torch.aminmax(weight)).float() for name, weight in weights.items() if weight.numel()}
    place = next(model.parameters()).device
    largest = torch.stack([values.abs().max().to(place) for values in extremes.values()]).tolist()  # NaN where one is; one synchronisation
    broken = [name for name, value in zip(extremes, largest, strict=True) if not value <= most]
    return [_named(name, weights[name], most) for name in broken], len(weights)


def put_in(adapter: TensorImage, file: Path, expected: Json, about: Json) -> None:
    """Give a fresh adapter the weights it is to start from. Raises Refusal when they are not those of the plan, or fit other modules.

    expected: what the plan says of the adapter to start from; about: the adapter_config.json of the fresh one.
    """
    experts = expected.get("experts") or {}
    try:
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise ValueError("it is not the file that the plan names")
        if other := [f"{name} is {about.get(name)}, there {value}" for name, value in experts.items() if (about.get(name) or {}) != value]:
            raise ValueError(f"with these adapter.targets {'; '.join(other)}")
        adapter.read(data)
    except (OSError, ValueError) as error:
        text = f"the adapter to start from ({file}, copied from {expected['path']}) cannot be used: {error}"
        hint = "start the run afresh with --run DIR, from an adapter of this base model"
        hint += ", with the adapter.targets and adapter.target_parameters it was trained with" if experts else ""
        raise Refusal("checkpoint_model_mismatch", text, hint) from None


def own_piece(weight: Any) -> Tensor:
    """Return the part of a weight that this rank holds: its shard of a sharded one, the copy in main memory of an offloaded one."""
    piece: Tensor = weight.to_local() if hasattr(weight, "to_local") else getattr(weight, "on_host", weight)
    return piece


def _named(name: str, weight: Tensor, most: float) -> str:
    bad = (~(weight.abs().float() <= most)).nonzero()
    name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    return broken_tensor(name, len(bad), tuple(weight.shape), tuple(bad[0].tolist()))
