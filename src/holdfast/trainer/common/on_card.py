"""Whether something lies on a card, with its memory and kernels. A process that only traces a step says what it is traced for."""

from __future__ import annotations

import torch
from torch import Tensor

_traced_for_a_card: bool | None = None  # None: nothing is traced here


def on_card(thing: Tensor | torch.device) -> bool:
    """Return whether a tensor lies on a GPU, or whether a device is one."""
    if _traced_for_a_card is not None:
        return _traced_for_a_card
    return (thing.device if isinstance(thing, Tensor) else thing).type == "cuda"


def trace_for(card: bool) -> None:
    """Treat all tensors as on a GPU, or none, for the rest of this process, which computes with shapes alone."""
    global _traced_for_a_card
    _traced_for_a_card = card
