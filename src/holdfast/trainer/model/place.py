"""Where a finished model computes: whole on the card, else its layers brought there one after the other, else on the CPU. Trains nothing.

What was chosen follows from the model's own bytes and what is free of the card, and steps down where memory runs out all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from holdfast.base.child import NOTES
from holdfast.base.errors import error_message
from holdfast.base.files import append_line
from holdfast.trainer.common.decoder import bring
from holdfast.trainer.common.device import free_bytes, release
from holdfast.trainer.common.oom import OutOfMemory, is_out_of_memory
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.offloaded_layers import OffloadedLayers
from holdfast.trainer.model.frozen.quantised import held_layers, to_card

_T = TypeVar("_T")
_ROOM = 0.9  # of what is free, for weights; the rest computes


class Place(NamedTuple):
    """A device, and whether layers are kept in main memory and come to it for their part of a pass."""

    device: torch.device
    layers_away: bool = False

    @property
    def words(self) -> str:
        if self.device.type == "cpu":
            return "it computes on the CPU"
        return "its layers stay in main memory and come to the card one after the other" if self.layers_away else "it lies on the card"


class DoesNotFit(OutOfMemory):
    """A model is larger than what is free of its device; nothing was tried."""


def places() -> list[Place]:
    """List the places where a model can lie on this machine, the fastest first."""
    cpu = Place(torch.device("cpu"))
    if not torch.cuda.is_available():
        return [cpu]
    card = torch.device("cuda", torch.cuda.current_device())
    return [Place(card), Place(card, layers_away=True), cpu]


def at_first_that_fits(left: list[Place], work: Callable[[Place], _T], tell: Callable[[str], None]) -> _T:
    """Return what `work` gives at the first place with enough memory; remove the places that fail from `left`, and report them.

    Raises what the last one raised, and what is no matter of memory.
    """
    while True:
        try:
            return work(left[0])
        except Exception as error:
            no_layers = left[0].layers_away and isinstance(error, Refusal)
            if len(left) == 1 or not (is_out_of_memory(error) or no_layers):
                raise
            why = error_message(error)
        release()
        left.pop(0)
        tell(f"{why}; so {left[0].words}")


def note(out: Path, part: str, text: str) -> None:
    """Write down what the user is told of a part of what was asked for, in the folder that answers are put into."""
    append_line(out / NOTES, {"part": part, "text": text})


def refuse_too_large(model: nn.Module, device: torch.device) -> None:
    """Raise DoesNotFit where a model in main memory is larger than what is free of a card, beside the widest matrix in fp32."""
    if device.type == "cpu":
        return
    sizes = {one.data_ptr(): one.nbytes for one in (*model.parameters(), *model.buffers())}
    widest = 4 * max((one.numel() for one in model.parameters() if one.ndim > 1), default=0)
    needed, free = sum(sizes.values()) + widest, free_bytes(device)
    if needed > _ROOM * free:
        text = f"the model takes {needed / 1e9:.1f} GB with what its products widen, and {free / 1e9:.1f} GB of the card are free"
        raise DoesNotFit(None, text, "the model", "cuda")


def put(model: Any, base: Any, place: Place) -> Any:
    """Move a model from main memory to a place. base: the model inside an adapter. Raises DoesNotFit, Refusal."""
    model.requires_grad_(False)
    if place.layers_away:
        OffloadedLayers(model, base, place.device).settle()
        return model
    refuse_too_large(model, place.device)
    held = [module.weight for _, module in held_layers(base)]
    for weight in held:
        to_card(weight, place.device)
    bring(model, held, place.device)
    return model
