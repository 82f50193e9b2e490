"""Trained weights of which each rank holds pieces, with their gradients and moments: a layer is whole only while it is computed.

Each rank's optimizer has one block of its pieces. A layer's weights are gathered from the ranks' blocks before it computes, forward and
backward; when its backward pass is over each rank gets the ranks' gradients of its own pieces and adds them in the tree of
`train.reduction_parts`. Not through fully_shard, which `train.fsdp` uses for frozen layers: its pieces are rows of single matrices in
memory of its own, and its sum is the backend's, which has other bits on another number of ranks.

Weights come and go by their storages' bytes, as in `trainer/model/frozen/offloaded_layers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.run.snapshots.pieces import piece_name
from holdfast.trainer.common.decoder import checksum, decoder_layers
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.piece_image import PieceImage
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.common.waiting import WAITING
from holdfast.trainer.distributed.group import peers
from holdfast.trainer.model.trained.pieces import Pieces, Unit
from holdfast.trainer.optim.optimizer import FlatOptimizer

CHECKSUMS = 1 << 64  # they are told modulo this, as large as a number of JSON may be here


def units_of(base: Any, tensors: Mapping[str, Tensor], parts: int) -> tuple[list[Unit], list[nn.Module]]:
    """Divide what is trained into a unit for each decoder layer and a last one for the rest; return them and the layers.

    Raises Refusal where there are no layers.
    """
    _, layers = decoder_layers(base, "train.fsdp")
    number = {id(one): at for at, layer in enumerate(layers) for one in layer.parameters()}
    groups: list[dict[str, Tensor]] = [{} for _ in range(len(layers) + 1)]
    for name, tensor in tensors.items():
        groups[number.get(id(tensor), len(layers))][name] = tensor
    return [Unit.of(group, parts) for group in groups], layers


class CutPieces(Pieces):
    """This rank's pieces of the trained weights of `base`. Moves nothing into the optimizer before `hold`."""

    def __init__(self, base: Any, units: Sequence[Unit], layers: Sequence[nn.Module], parts: int, device: torch.device) -> None:
        super().__init__(units, parts, dist.get_rank(), dist.get_world_size())
        self._counts = True
        self.pieces: dict[str, Tensor] = {}
        self.whole = {name: tensor.shape for name, tensor in self.tensors.items()}
        names = [f"layer {number}" for number in range(len(layers))] + ["what is outside of the layers"]
        self._held = [_UnitWeights(name, unit, self, device) for name, unit in zip(names, units, strict=True)]
        *self._layers, self._rest = self._held
        decoder, _ = decoder_layers(base, "train.fsdp")
        decoder.register_forward_pre_hook(self._begin)
        for held, layer in zip(self._layers, layers, strict=True):
            self.pieces |= held.cut()
            layer.register_forward_pre_hook(partial(self._reached, held))
            layer.register_forward_hook(partial(self._left, held))
        self.pieces |= self._rest.cut()

    def hold(self, optimizer: FlatOptimizer) -> None:
        at = 0
        for held in self._held:
            held.weights, held.gradient = optimizer.weights[at : at + held.length], optimizer.gradient[at : at + held.length]
            at += held.length

    def image(self, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> TensorImage:
        return PieceImage(tensors, self.whole, metadata)

    @property
    def wanted(self) -> list[int]:
        """Of each unit, this rank's share in the checksum of what it was cut from."""
        return [held.wanted for held in self._held]

    def sums(self, pieces: Mapping[str, Tensor]) -> list[int]:
        """Return this rank's share of each unit's checksum, from these values of its pieces."""
        return [sum(checksum(pieces[name], at) for name, at in held.places.items()) % CHECKSUMS for held in self._held]

    def checksum(self, number: int) -> int:
        """Return the checksum of unit `number` as it is gathered. All ranks ask."""
        self.forget()
        return self._held[number].checksum()

    def forget(self) -> None:
        """Drop the gathered units, whose weights are out of date."""
        for held in self._held:
            held.go()

    def begin_pass(self, counts: bool) -> None:
        self._counts = counts

    def end_pass(self) -> None:
        for held in (*reversed(self._layers), self._rest):
            held.add(self._counts)
        for held in self._layers:
            held.go()
        if late := [name for name, tensor in self.tensors.items() if tensor.grad is not None]:
            text = f"{late[0]} has a gradient after its layer's backward pass is over, so layers of this model cannot be cut between ranks"
            raise Refusal("launch_misconfigured", text, "leave train.fsdp out; then start afresh with --run DIR")

    def after(self, step: int, steps: int) -> None:
        self.forget()

    def _begin(self, *_: object) -> None:
        for held in self._held:
            held.drop()  # of a pass whose gradients nobody asked for
        self._rest.come()
        if torch.is_grad_enabled():
            self._rest.expect()

    def _reached(self, held: _UnitWeights, *_: object) -> None:
        for other in self._layers:
            if other is not held:
                other.go()
        held.come()

    def _left(self, held: _UnitWeights, _module: nn.Module, _given: object, out: Any) -> None:
        """Watch for the gradient of what a layer gave: then its backward pass begins, and that of the one behind it is over."""
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(partial(self._back, held))  # type: ignore[no-untyped-call]

    def _back(self, held: _UnitWeights, _gradient: Tensor) -> None:
        for other in reversed(self._layers):
            if other is not held:
                other.add(self._counts)
                other.go()
        held.come()
        held.expect()


class _UnitWeights:
    """A unit's weights: this rank's pieces, always; all of them, for a while."""

    def __init__(self, name: str, unit: Unit, pieces: Pieces, device: torch.device) -> None:
        self.name, self.unit, self.size = name, unit, pieces.size
        self.start, self.end = pieces.own(unit)
        self.length, self.share = self.end - self.start, unit.piece * pieces.each
        self.weights = self.gradient = torch.empty(0, device=device)  # parts of the optimizer's block, once there is one
        self._whole = torch.empty(0, device=device)
        self._gradients: Tensor | None = None
        self._there = False
        self.places: dict[str, int] = {}  # where this rank's pieces begin in the unit
        self.wanted = 0

    def cut(self) -> dict[str, Tensor]:
        """Leave no weight of the unit but this rank's pieces, which have memory of their own."""
        device, pieces = self._whole.device, {}
        for tensor in self.unit.tensors.values():
            tensor.on_host = tensor.new_empty(0)  # type: ignore[attr-defined]
        at = self.start
        for name, start, end in self.unit.within(self.start, self.end):
            tensor = self.unit.tensors[name]
            own = tensor.detach().reshape(-1)[start:end]
            named = piece_name(name, start, end, tensor.numel())
            pieces[named] = own.to(device, torch.float32, copy=True)
            tensor.on_host = pieces[named]  # type: ignore[attr-defined]  # what this rank can say of it
            self.wanted = (self.wanted + checksum(own.float(), at)) % CHECKSUMS
            self.places[named], at = at, at + end - start
        self._whole = torch.empty(self.share * self.size, device=device)
        at = 0
        for tensor in self.unit.tensors.values():
            tensor.data = self._whole[at : at + tensor.numel()].view(tensor.shape)
            at += tensor.numel()
        self.go(forced=True)
        return pieces

    def come(self) -> None:
        """Gather the unit, unless it is there."""
        if self._there or not self.share:
            return
        self._whole.untyped_storage().resize_(self._whole.numel() * self._whole.itemsize)
        own = self.weights
        if len(own) < self.share:
            own = own.new_zeros(self.share)
            own[: self.length] = self.weights
        with WAITING.during(f"the weights of {self.name}"), peers(), torch.no_grad():
            _gather(self._whole, own)
        self._there = True

    def checksum(self) -> int:
        """Return the checksum of the whole unit."""
        self.come()
        return checksum(self._whole[: self.unit.size])

    def go(self, forced: bool = False) -> None:
        """Give the memory of the whole unit back."""
        if self._there or forced:
            self._whole.untyped_storage().resize_(0)
            self._there = False

    def expect(self) -> None:
        """Allocate gradients of the whole unit before a backward pass."""
        if self._gradients is None and self.share:
            self._gradients, at = torch.zeros_like(self._whole), 0
            for tensor in self.unit.tensors.values():
                tensor.grad = self._gradients[at : at + tensor.numel()].view(tensor.shape)
                at += tensor.numel()

    def drop(self) -> None:
        """Drop the gradients of the whole unit."""
        self._gradients = None
        for tensor in self.unit.tensors.values():
            tensor.grad = None

    def add(self, counts: bool) -> None:
        """Leave the sum of all ranks' gradients of this rank's pieces in the optimizer's block: neighbours first, then pairs of them.

        counts: whether this rank's are any of the step's.
        """
        if self._gradients is None:
            return
        gradients = self._gradients if counts else self._gradients.zero_()
        self.drop()
        every = torch.empty_like(gradients)
        with WAITING.during(f"the gradients of {self.name}"), peers():
            dist.all_to_all_single(every, gradients)
        rows = every.view(self.size, self.share)
        while len(rows) > 1:
            rows = rows[::2].add_(rows[1::2])
        self.gradient.copy_(rows[0, : self.length])


def _gather(whole: Tensor, own: Tensor) -> None:
    """Put the ranks' shares, in order, into `whole`."""
    ask: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name since torch 2.13
    ask(whole, own)
