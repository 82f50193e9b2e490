"""Frozen decoder layers kept in main memory and brought to the card one ahead of the one that computes, forward and backward.

A layer's memory on the card is taken when it comes and given back when it goes (the storages' bytes, as torch's FSDP does it), so
whatever reads a weight inside of its layer's pass reads the bytes of the file: how it is held, which adapter is on it and which kernels
compute make no difference, and no result changes. Two layers are on the card at a time.

Not through fully_shard with CPUOffloadPolicy, though `train.fsdp` is fully_shard: for a process alone torch (2.13) copies a layer in the
stream that computes, when it is needed (`FSDPParamGroup.wait_for_unshard`), so nothing is ahead; and weights of bitsandbytes lose their
scales.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from holdfast.config.config import Config
from holdfast.machine.host_memory import host_memory
from holdfast.trainer.common.decoder import bring, checksum, decoder_layers, frozen
from holdfast.trainer.common.device import release
from holdfast.trainer.common.pinned import PinnedMapping
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen.quantised import to_card

Near: TypeAlias = Callable[..., AbstractContextManager[None]]
_LEFT_SHARE = 0.1  # of main memory, never taken: pinned memory cannot be swapped


def streams(config: Config, device: torch.device) -> bool:
    """Return whether this process keeps frozen layers in main memory and copies them to a card; never without a card."""
    return config.train.offload == "layers" and device.type == "cuda"


def everywhere(*_modules: nn.Module) -> AbstractContextManager[None]:
    """Provide a context without effect, for weights that already lie where they compute."""
    return nullcontext()


class OffloadedLayers:
    """The frozen layers of `base`, a model in main memory, which `model` is or wraps. All else of it is moved to the card.

    near: what lays weights out anew does so inside, a layer after the other; then `settle`. Raises Refusal where there are no layers, or
    main memory has no room for them.
    """

    def __init__(self, model: nn.Module, base: Any, device: torch.device) -> None:
        decoder, self._layers = decoder_layers(base, "train.offload: layers")
        self._device = device
        self._weights = self._of_one_layer(model)
        _refuse_too_large(sum(weight.nbytes for layer in self._weights for weight in layer))
        bring(model, (weight for layer in self._weights for weight in layer), device)
        self._numbers = {id(module): number for number, layer in enumerate(self._layers) for module in layer.modules()}
        self._blocks: list[list[_Block] | None] = [None] * len(self._layers)  # None: was never on the card
        self._open: int | None = None  # the layer that is being laid out
        self._there: dict[int, torch.cuda.Event] = {}
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ahead = 1
        decoder.register_forward_pre_hook(self._begin)
        for number, layer in enumerate(self._layers):
            layer.register_forward_pre_hook(partial(self._reached, number))
            layer.register_forward_hook(partial(self._left, number))

    def _of_one_layer(self, model: nn.Module) -> list[list[nn.Parameter]]:
        """Return, for each layer, its frozen matrices that no other module shares."""
        users: dict[int, int] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                users[id(parameter)] = users.get(id(parameter), 0) + 1
        return [[one for one in frozen(layer) if one.ndim > 1 and users[id(one)] == 1] for layer in self._layers]

    @contextmanager
    def near(self, *modules: nn.Module) -> Iterator[None]:
        """Keep the weights of these modules, of one layer or of none, on the card within the context; they may be laid out anew."""
        number = next((found for module in modules if (found := self._numbers.get(id(module))) is not None), None)
        if number is not None and number != self._open:
            self._close()
            self._open = number
            if self._blocks[number] is None:
                for weight in self._weights[number]:
                    to_card(weight, self._device)
            else:
                self._come(number)
                torch.cuda.current_stream(self._device).wait_event(self._there[number])
        yield

    def settle(self) -> int:
        """Leave no layer on the card; bytes in main memory. Raises Refusal where one does not come back as it was."""
        for number, layer in enumerate(self._layers):
            if self._blocks[number] is None:
                with self.near(layer):
                    pass
        self._close()
        return sum(block.size for blocks in self._blocks for block in blocks or ())

    @property
    def unpinned(self) -> str:
        """Why the driver did not take the memory, so that the card waits for each copy; empty where it did."""
        return next((why for blocks in self._blocks for block in blocks or () if (why := block.pinned.refused)), "")

    def _close(self) -> None:
        """Take the layer that was laid out off the card again."""
        if (number := self._open) is None:
            return
        self._open = None
        before = {block.storage._cdata: block for block in self._blocks[number] or ()}
        now: dict[int, _Block] = {}
        for tensor in (tensor for weight in self._weights[number] for tensor in _tensors(weight)):
            key = tensor.untyped_storage()._cdata
            if key not in now:
                now[key] = before.get(key) or _Block(tensor, self._device)
        self._blocks[number] = list(now.values())
        for weight in self._weights[number]:
            if weight.is_floating_point():
                weight.on_host = now[weight.untyped_storage()._cdata].like(weight)  # type: ignore[attr-defined]
        self._go(number)
        if fresh := [block for key, block in now.items() if key not in before]:
            self._refuse_changed(number, fresh)

    def _refuse_changed(self, number: int, fresh: list[_Block]) -> None:
        """Bring a layer once and compare it with what left. Raises Refusal."""
        self._come(number)
        torch.cuda.current_stream(self._device).wait_event(self._there[number])
        if lost := sum(checksum(block.bits) != block.wanted for block in fresh):
            text = f"layer {number} does not come back from main memory as it left the card: {lost} of {len(fresh)} blocks differ"
            raise Refusal("hardware_fault", text, "test memory and card of this machine; train.offload=off trains without")
        self._go(number)

    def _begin(self, *_: object) -> None:
        self._ahead = 1

    def _reached(self, number: int, *_: object) -> None:
        """Bring the weights of layer `number`, and begin to copy the next one in this direction, which turns at either end."""
        following = number + self._ahead
        if not 0 <= following < len(self._layers):
            following = max(0, number - self._ahead)
        for other in [one for one in self._there if one not in (number, following)]:
            self._go(other)
        self._come(number)
        torch.cuda.current_stream(self._device).wait_event(self._there[number])
        self._come(following)

    def _left(self, number: int, _module: nn.Module, _given: object, out: Any) -> None:
        """Watch for the gradient of what a layer gave: then its backward pass begins."""
        for tensor in out if isinstance(out, tuple) else (out,):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(partial(self._back, number))  # type: ignore[no-untyped-call]

    def _back(self, number: int, _gradient: Tensor) -> None:
        self._ahead = -1
        self._reached(number)

    def _come(self, number: int) -> None:
        """Ask for a layer, unless it is there. What it takes was given back by work that its copies wait for."""
        if number in self._there:
            return
        blocks = self._blocks[number] or []
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        try:
            with torch.cuda.stream(self._side):
                for block in blocks:
                    block.come()
                self._there[number] = self._side.record_event()
        except BaseException:  # no memory for it, mostly
            for block in blocks:
                block.go()
            raise

    def _go(self, number: int) -> None:
        self._there.pop(number, None)
        for block in self._blocks[number] or ():
            block.go()


class _Block:
    """A block of the card's memory, which is taken only while its layer is there, and its bytes in main memory."""

    def __init__(self, tensor: Tensor, device: torch.device) -> None:
        self.storage = tensor.untyped_storage()
        self.size = self.storage.nbytes()
        self.on_card = torch.empty(0, dtype=torch.uint8, device=device).set_(self.storage, 0, (self.size,), (1,))
        memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # torch's own pinned blocks are powers of two
        self.pinned = PinnedMapping(memory, device)
        self.host = torch.frombuffer(memory, dtype=torch.uint8)
        self.host.copy_(self.on_card)
        self.wanted = checksum(self.bits)
        weakref.finalize(self, self.pinned.release).atexit = False

    @property
    def bits(self) -> Tensor:
        """The bytes on the card, as wide as they can be read."""
        return self.on_card if self.size % 4 else self.on_card.view(torch.int32)

    def like(self, tensor: Tensor) -> Tensor:
        """Return the view of the block in main memory that has this tensor's shape, stride and offset."""
        whole = self.host.view(tensor.dtype)
        return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def come(self) -> None:
        self.storage.resize_(self.size)
        self.on_card.copy_(self.host, non_blocking=True)

    def go(self) -> None:
        self.storage.resize_(0)


def _tensors(weight: Any) -> Iterator[Tensor]:
    """Yield the tensors of a weight that are moved: its numbers, and the scales of its blocks."""
    yield weight
    if (state := getattr(weight, "quant_state", None)) is not None:
        yield state.absmax


def _refuse_too_large(size: int) -> None:
    """Raise Refusal where main memory has no room for so many bytes that cannot be swapped."""
    if _lacks(size):
        release()  # a model that was built before this one
    if found := _lacks(size):
        total, available = found
        text = f"train.offload: layers keeps {size >> 20:,} MiB in main memory, which has {available >> 20:,} of {total >> 20:,} MiB left"
        raise Refusal("host_out_of_memory", text, "take train.frozen: nf4, or a smaller model; then start afresh with --run DIR")


def _lacks(size: int) -> tuple[int, int] | None:
    """Return (total, available) bytes of main memory where `size` more would leave too little; None where it suffices or is unknown."""
    now = host_memory()
    total, available = now.get("MemTotal"), now.get("MemAvailable")
    return (total, available) if total and available is not None and available - size < _LEFT_SHARE * total else None
