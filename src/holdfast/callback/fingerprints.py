"""What each step of somebody else's training was computed from, as short hashes: two runs can be held against each other step by step.

    fingerprints.jsonl    {"step": 7, "rows": "9f..", "batch": "c4..", "lr": [0.0002], "random": "31..", "weights": "ab..",
                           "optimizer": "07.."}
                          {"loaded": 6, "weights": "..", "optimizer": ".."} where a process begins behind step 6
                          {"training": 2} where its second training begins, whose steps are counted anew

rows (their numbers in the data set), batch (what is in them), lr and random are those a step begins with, weights and optimizer what it
leaves. A field that is missing was not looked at.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

FILE = "fingerprints.jsonl"
SHARE = 0.005  # of the time, the most that either kind of look may cost
_MOST = 32 << 20  # bytes of the file; nothing is written behind them
_SMALL, _BYTES_S = 64 << 20, 5e8  # bytes of weights that are hashed at once; bytes of weights and moments a second, at least


class _Every:
    """Look at steps whose number is a multiple of a power of two, so that two runs look at the same steps."""

    def __init__(self) -> None:
        self.steps = 1

    def due(self, step: int) -> bool:
        return step % self.steps == 0

    def cost(self, seconds: float, step_s: float) -> None:
        """Look as often as keeps the cost within its share."""
        while step_s > 0 and self.steps < 1 << 20 and seconds > SHARE * self.steps * step_s:
            self.steps *= 2


class Fingerprints:
    """Of one process that trains alone. Raises OSError where the file cannot be written."""

    def __init__(self, folder: Path, training: int = 1) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(folder / FILE, flags, 0o600)
        self._light, self._heavy = _Every(), _Every()
        self._found: dict[str, Any] = {}
        self._sized = False  # whether it is known how often weights can be looked at
        self._began, self._step_s, self._step = 0.0, 0.0, -1
        self._first = time.perf_counter()
        if training > 1:
            self._write({"training": training})

    def loaded(self, step: int, model: Any, optimizer: Any) -> None:
        """Note behind which step a process goes on, and what it has loaded, unless that is much."""
        much = self._size(model) > _SMALL
        found = {} if much else {"weights": hash_of(trained(model)), "optimizer": hash_of(moments(optimizer))}
        self._write({"loaded": step} | found)

    def begin(self, step: int, rows: list[int] | None, optimizer: Any, batch: Any = None) -> None:
        """Note what a step begins with; rows: of its data set, None where nobody tells; batch: what it is computed from, or None."""
        now = time.perf_counter()
        if self._began and step == self._step + 1:
            self._step_s = now - self._began
        self._began, self._step, self._found = now, step, {}
        if self._light.due(step):
            told = {"rows": hash_of([json.dumps(rows).encode()])} if rows else {}
            if batch:
                with contextlib.suppress(TypeError):  # pictures, and whatever else has no bytes that are known
                    told["batch"] = hash_of(_bits_of(batch))
            rates = [float(group["lr"]) for group in getattr(optimizer, "param_groups", ())]
            self._found = told | {"lr": rates, "random": hash_of(_random_states())}
            self._light.cost(time.perf_counter() - now, self._step_s)

    def end(self, step: int, model: Any, optimizer: Any, last: bool = False) -> None:
        """Note what a step leaves, its update included. last: it is the training's last one, whose weights are looked at once more."""
        began = time.perf_counter()
        if not self._sized and (self._step_s or self._size(model) <= _SMALL):
            self._sized = True
            self._heavy.cost(3 * self._size(model) / _BYTES_S if self._step_s else 0.0, self._step_s)
        size = self._size(model) if last else 0
        if (self._sized and self._heavy.due(step)) or (last and (size <= _SMALL or 3 * size / _BYTES_S <= SHARE * (began - self._first))):
            self._found |= {"weights": hash_of(trained(model)), "optimizer": hash_of(moments(optimizer))}
            self._heavy.cost(time.perf_counter() - began, self._step_s)
        if self._found:
            self._write({"step": step} | self._found)
        self._found = {}

    def _size(self, model: Any) -> int:
        return sum(one.numel() * one.element_size() for one in model.parameters() if one.requires_grad)

    def _write(self, told: dict[str, Any]) -> None:
        if os.fstat(self._file).st_size < _MOST:
            os.write(self._file, json.dumps(told).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def hash_of(parts: Iterable[bytes | memoryview]) -> str:
    """Return 16 hexadecimal digits."""
    found = blake2b(digest_size=8)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def trained(model: Any) -> Iterator[bytes | memoryview]:
    """Yield names and bytes of the tensors that are trained."""
    for name, one in model.named_parameters():
        if one.requires_grad:
            yield name.encode()
            yield _bytes_of(one)


def moments(optimizer: Any) -> Iterator[bytes | memoryview]:
    """Yield what an optimizer keeps of each tensor, in the order of its groups."""
    state = optimizer.state_dict()["state"] if optimizer is not None else {}
    for number in sorted(state, key=str):
        for name, value in sorted(state[number].items()):
            yield f"{number} {name}".encode()
            yield from _bits_of(value)


def _bits_of(value: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a value and of all tensors in it, which print their first and last numbers alone."""
    if isinstance(value, torch.Tensor):
        yield _bytes_of(value)
    elif isinstance(value, (Mapping, list, tuple)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for part in (part for pair in value.items() for part in pair) if isinstance(value, Mapping) else value:
            yield from _bits_of(part)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield repr(value).encode()
    else:
        raise TypeError(f"{type(value).__name__} in the optimizer's state has no bytes that are known")


def listen(trainer: Any, drawn: list[Any]) -> None:
    """Have what each step of a Trainer is computed from put into a list as it is drawn, its micro-batches in order.

    Not of a method of that name that does something else, as TRL's had one that answers prompts, nor where batches are no list.
    """
    draw = getattr(trainer, "get_batch_samples", None)
    if draw is None or "get_batch_samples" in vars(trainer) or "epoch_iterator" not in inspect.signature(draw).parameters:
        return

    @functools.wraps(draw)
    def get_batch_samples(*told: Any, **more: Any) -> Any:
        found = draw(*told, **more)
        batches = found[0] if isinstance(found, tuple) and found else None
        drawn[:] = batches if isinstance(batches, list) else ()  # an iterator is theirs to draw from
        return found

    trainer.get_batch_samples = get_batch_samples


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # of DTensor
    whole = whole.to_dense() if whole.is_sparse else whole
    flat = whole.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    seen: Any = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return memoryview(seen)


def _random_states() -> Iterator[bytes]:
    """Yield the states of Python's, NumPy's and torch's generators."""
    import numpy

    yield repr(random.getstate()).encode()
    numpy_state: Any = numpy.random.get_state(legacy=True)
    _, key, *rest = numpy_state
    yield key.tobytes()
    yield repr(rest).encode()
    yield torch.random.get_rng_state().numpy().tobytes()
    if torch.cuda.is_available():
        yield torch.cuda.random.get_rng_state().numpy().tobytes()
