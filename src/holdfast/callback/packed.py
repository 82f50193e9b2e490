"""States as tensors and what is left of them, into the shared file and back; no oftener than a share of the time allows."""

from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path
from typing import Any

import torch

from holdfast.callback.shared import SharedState, newest

SHARE = 0.02  # of a step's time, the most that keeping its state may cost it; HOLDFAST_SNAPSHOT_SHARE says otherwise
_FACTS_ROOM = 4 << 20
_ALIGNED = 64
_TENSOR, _TUPLE = "holdfast tensor", "holdfast tuple"


def strip(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Replace each tensor of the tree by its place in `tensors`, to which it is added."""
    if isinstance(tree, torch.Tensor):
        tensors.append(tree.detach())
        return (_TENSOR, len(tensors) - 1)
    if isinstance(tree, dict):
        return {key: strip(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [strip(value, tensors) for value in tree]
    if type(tree) is tuple:
        return (_TUPLE, [strip(value, tensors) for value in tree])
    return tree


def back(tree: Any, tensors: list[torch.Tensor]) -> Any:
    """Restore a tree from `strip`, with its tensors in their places."""
    if type(tree) is tuple and tree[0] == _TENSOR:
        return tensors[tree[1]]
    if type(tree) is tuple and tree[0] == _TUPLE:
        return tuple(back(value, tensors) for value in tree[1])
    if isinstance(tree, dict):
        return {key: back(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [back(value, tensors) for value in tree]
    return tree


class Packer:
    """Keeps states of one process in a shared file. cost_s, step_s: of a state kept, and of a step, as measured lately.

    step: of the newest state, None where it was taken back.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self.share = float(os.environ.get("HOLDFAST_SNAPSHOT_SHARE", SHARE))
        self.cost_s = self.step_s = 0.0
        self.taken = self._since = 0
        self.step: int | None = None
        self._shared: SharedState | None = None
        self._layout: list[tuple[int, torch.dtype, tuple[int, ...]]] = []
        self._last: float | None = None
        self._began = 0.0

    def due(self) -> bool:
        """True if the state after this step is to be kept."""
        now = time.perf_counter()
        if self._last is not None:
            took = now - self._last
            self.step_s = 0.8 * self.step_s + 0.2 * took if self.step_s else took
        self._last = self._began = now
        self._since += 1
        return not self.taken or self._since * self.step_s * self.share >= self.cost_s

    def begin(self) -> None:
        """Count the cost of keeping a state from here."""
        self._began = time.perf_counter()

    @torch.no_grad()
    def keep(self, tensors: list[torch.Tensor], facts: dict[str, Any]) -> None:
        """Keep them, whole or not at all. Raises OSError where there is no room, ValueError where the facts are too long."""
        layout = [(one.numel() * one.element_size(), one.dtype, tuple(one.shape)) for one in tensors]
        if self._shared is None or layout != self._layout:
            self._layout = layout
            self._shared = SharedState(self.path, self.run, sum(map(_room, layout)) + _ALIGNED, _FACTS_ROOM)
        at, begin = self._shared.slot()
        view = torch.frombuffer(self._shared.memory, dtype=torch.uint8)
        for one, entry in zip(tensors, layout, strict=True):
            if entry[0]:
                view[begin : begin + entry[0]].view(one.dtype).view(one.shape).copy_(one)
            begin += _room(entry)
        told = [(size, str(kind).removeprefix("torch."), shape) for size, kind, shape in layout]
        self._shared.seal(at, pickle.dumps(facts | {"layout": told}), int(facts.get("step", 0)))
        self.step = facts.get("step")
        self._last = time.perf_counter()
        cost = self._last - self._began
        self.cost_s = cost if self.taken < 2 else 0.7 * self.cost_s + 0.3 * cost  # the first one makes the file
        self.taken, self._since = self.taken + 1, 0

    def take_back(self, step: int) -> bool:
        """Give up the newest state if it is of this step, which has not come to its end: the one before counts. True where it was."""
        if self._shared is None or self.step != step:
            return False
        self._shared.take_back()
        self.step = None
        return True


def _room(entry: tuple[int, Any, Any]) -> int:
    return -(-entry[0] // _ALIGNED) * _ALIGNED


def unpack(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
    """Return (facts, tensors) of the newest whole state in a shared file; None where there is none. Raises OSError, ValueError."""
    found = newest(path)
    if found is None:
        return None
    kept, packed = found
    facts: dict[str, Any] = pickle.loads(packed)  # our own: the file is this user's, and nobody else may write it
    tensors, at = [], 0
    for entry in facts["layout"]:
        size, kind, shape = entry
        data = torch.frombuffer(bytearray(kept[at : at + size]), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
        tensors.append(data.view(getattr(torch, kind)).view(shape))
        at += _room(entry)
    return facts, tensors


def random_states() -> dict[str, Any]:
    """Return the random states as a Trainer saves them (Trainer._save_rng_state, one process)."""
    import numpy

    states: dict[str, Any] = {"python": random.getstate(), "numpy": numpy.random.get_state(), "cpu": torch.random.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.random.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Set the random states that `random_states` returned."""
    import numpy

    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.random.set_rng_state(states["cuda"])
