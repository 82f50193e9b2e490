"""Where a finished model computes: whole on the card, else with its layers brought there one after the other, or in the few bits that its
run held it in, else on the CPU. Trains nothing.

What was chosen follows from the model's own bytes and what is free of the card, and steps down where memory runs out all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from holdfast.base.child import NOTES
from holdfast.base.errors import error_message
from holdfast.base.files import Json, append_line
from holdfast.base_model.packed import PackedWeights
from holdfast.trainer.common.decoder import bring
from holdfast.trainer.common.device import free_bytes, release
from holdfast.trainer.common.oom import OutOfMemory, is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.offloaded_layers import OffloadedLayers
from holdfast.trainer.model.frozen.quantised import held_weights, to_card

_T = TypeVar("_T")
_ROOM = 0.9  # of what is free, for weights; the rest computes


class HeldForm(NamedTuple):
    """How a run held a base model that comes in more bits. dtype: of its arithmetic, to which matrices were rounded first."""

    weights: PackedWeights
    dtype: str


class ModelPlace(NamedTuple):
    """A device, whether layers are kept in main memory and come to it for their part of a pass, and the fewer bits that matrices have."""

    device: torch.device
    layers_away: bool = False
    held: HeldForm | None = None

    @property
    def words(self) -> str:
        if self.device.type == "cpu":
            return "it computes on the CPU"
        if self.held:
            return f"it lies on the card in {self.held.weights.kind}, as its run held the base; with the base in 16 bits figures may differ"
        return "its layers stay in main memory and come to the card one after the other" if self.layers_away else "it lies on the card"


class DoesNotFit(OutOfMemory):
    """A model is larger than what is free of its device; nothing was tried."""


def places(held: Json | None = None, quick: bool = False) -> list[ModelPlace]:
    """List the places where a model can lie on this machine, in the order they are tried: whole and as it comes first of all.

    held: {kind, double, dtype} of the run whose base it is, where that held it in fewer bits than it comes in. quick: take it so rather
    than bring its layers for each pass.
    """
    cpu = ModelPlace(torch.device("cpu"))
    if not torch.cuda.is_available():
        return [cpu]
    card = torch.device("cuda", torch.cuda.current_device())
    others = [ModelPlace(card, layers_away=True)]
    if held:
        fewer = ModelPlace(card, held=HeldForm(PackedWeights(held["kind"], held["double"]), held["dtype"]))
        others = [fewer, *others] if quick else [*others, fewer]
    return [ModelPlace(card), *others, cpu]


def at_first_that_fits(left: list[ModelPlace], work: Callable[[ModelPlace], _T], tell: Callable[[str], None]) -> _T:
    """Return what `work` gives at the first place with enough memory; remove the places that fail from `left`, and report them.

    Raises what the last one raised, and what is no matter of memory.
    """
    while True:
        try:
            return work(left[0])
        except Exception as error:
            refused = (left[0].layers_away or left[0].held) and isinstance(error, Refusal)
            if len(left) == 1 or not (is_out_of_memory(error) or refused):
                raise
            why = error_message(error)
        release()
        left.pop(0)
        tell(f"{why}; so {left[0].words}")


def in_one_form(parts: list[Json], left: list[ModelPlace]) -> Iterator[Json]:
    """Yield each part, and all of them again where the model's bits became other ones meanwhile: they are compared with each other."""
    at = 0
    while at < len(parts):
        before = left[0].held
        yield parts[at]
        at = at + 1 if left[0].held == before or at == 0 else 0


def note(out: Path, part: str, text: str) -> None:
    """Write down what the user is told of a part of what was asked for, in the folder that answers are put into."""
    append_line(out / NOTES, {"part": part, "text": text})


def refuse_too_large(model: nn.Module, device: torch.device) -> None:
    """Raise DoesNotFit where what of a model is in main memory is larger than what is free of a card, beside the widest matrix in fp32."""
    if device.type == "cpu":
        return
    sizes = {one.data_ptr(): one.nbytes for one in (*model.parameters(), *model.buffers()) if one.device != device}
    widest = 4 * max((one.numel() for one in model.parameters() if one.ndim > 1), default=0)
    needed, free = sum(sizes.values()) + widest, free_bytes(device)
    if needed > _ROOM * free:
        text = f"the model takes {needed / 1e9:.1f} GB with what its products widen, and {free / 1e9:.1f} GB of the card are free"
        raise DoesNotFit(None, text, "the model", "cuda")


def put(model: Any, base: Any, place: ModelPlace) -> Any:
    """Move a model from main memory to a place. base: the model inside an adapter. Raises DoesNotFit, Refusal."""
    model.requires_grad_(False)
    if place.layers_away:
        OffloadedLayers(model, base, place.device).settle()
        return model
    refuse_too_large(model, place.device)
    held = list(held_weights(base))
    for weight in held:
        to_card(weight, place.device)
    bring(model, held, place.device)
    return model
