"""Frozen decoder layers cut into pieces, one a rank, by torch's fully_shard (FSDP2): a layer is whole only while it is computed.
What is trained is cut in trained/cut.py.

Embeddings, output layer, norms after the last layer and what is trained are held by every rank. A gathered layer has the bytes that the
file has, so results are those of a model that is held whole, to the bit. That the pieces make up the model again is looked at once
before they are used: a shard that did not come back (accelerate's issue 4206) is a refusal, never a wrong gradient.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from holdfast.config.config import Config
from holdfast.trainer.common.decoder import bring, checksum, decoder_layers, frozen
from holdfast.trainer.common.refuse import Refusal, own_piece
from holdfast.trainer.common.waiting import WAITING


def mesh_of(config: Config, device: torch.device) -> DeviceMesh | None:
    """Return the mesh of ranks that shard the layers; None where this process trains alone or each rank holds the whole model."""
    if not config.train.fsdp or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    return init_device_mesh(device.type, (dist.get_world_size(),))


def shard_layers(base: Any, trained: Iterable[Tensor], mesh: DeviceMesh, device: torch.device) -> int:
    """Leave of each decoder layer this rank's piece, on `device`, and move all else there whole; bytes of frozen weights it then holds.

    Raises Refusal where there are no layers, or a piece is not what was cut.

    base: a model in main memory, mapped from its files where it can be: what is not kept here is then never read into memory of ours.
    """
    decoder, layers = decoder_layers(base, "train.fsdp")
    cut_off = _fully_shard()
    own = set(trained)
    bring(base, {parameter for layer in layers for parameter in layer.parameters()} - own, device)
    for number, layer in enumerate(layers):
        wanted = [checksum(piece) for piece in frozen(layer)]
        what = f"the weights of layer {number}"
        layer.register_forward_hook(partial(_back, partial(WAITING.begin, what)))
        cut_off(layer, mesh=mesh, ignored_params=own)
        layer.register_forward_pre_hook(lambda *_, what=what: WAITING.begin(what), prepend=True)  # before it is gathered
        layer.register_forward_pre_hook(lambda *_: WAITING.end())
        layer.register_forward_hook(partial(_back, WAITING.end))
        _refuse_lost(layer, wanted, number)
    cut_off(decoder, mesh=mesh, ignored_params=set(decoder.parameters()) - {one for layer in layers for one in frozen(layer)})
    return sum(own_piece(one).numel() * one.dtype.itemsize for one in base.parameters() if not one.requires_grad)


def _back(tell: Callable[[], None], _module: object, _given: object, out: Any) -> None:
    """Have the backward pass of a layer begin with `tell`; torch gathers the layer by such a hook of its own, between the two of ours."""
    for tensor in out if isinstance(out, tuple) else (out,):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            tensor.register_hook(lambda _: tell())  # type: ignore[no-untyped-call]


def _fully_shard() -> Any:
    """Return torch's fully_shard, which can leave parameters out since 2.7. Raises Refusal where it is older."""
    fsdp = importlib.import_module("torch.distributed.fsdp")  # a second of imports that other runs do without
    fully_shard = getattr(fsdp, "fully_shard", None)
    if fully_shard is None or "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise Refusal(
            "package_conflict", f"train.fsdp needs torch 2.7 or newer, this is {torch.__version__}", "pip install --upgrade torch"
        )
    return fully_shard


def _refuse_lost(layer: Any, wanted: list[int], number: int) -> None:
    """Gather a layer once and compare it with what was cut. Raises Refusal; all ranks gather, so all of them see it."""
    names = [name for name, parameter in layer.named_parameters() if not parameter.requires_grad]
    layer.unshard()
    found = [checksum(piece) for piece in frozen(layer)]
    layer.reshard()
    if lost := [name for name, one, other in zip(names, wanted, found, strict=True) if one != other]:
        text = (
            f"layer {number} does not come back from the ranks as it was cut: {', '.join(lost[:3])} ({len(lost)} of {len(names)} weights)"
        )
        raise Refusal("hardware_fault", text, "test memory and connection of these machines; train.fsdp=false trains without pieces")
