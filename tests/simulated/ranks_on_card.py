"""`python ranks_on_card.py` with two simulated cards: two ranks, one card each, in the code that real cards run. Run by test_ranks.py."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from typing import Any

import simulated_card as card  # before torch
import torch
import torch.distributed as dist

from holdfast.config.config import Config
from holdfast.trainer.distributed.group import Group
from holdfast.trainer.model.frozen import sharded
from support.architectures import small_llama

SIZE = 2


def adds(group: Group, device: torch.device) -> None:
    """Gradients are added on the cards, by the backend and in a tree; the first rank's state comes to all."""
    own = torch.arange(1000.0, device=device) * (group.number + 1)
    for in_tree in (False, True):
        block = own.clone()
        group.sum_([block], in_tree)
        assert block.device == device and torch.equal(block.cpu(), torch.arange(1000.0) * 3)
    group.share([own])
    assert torch.equal(own.cpu(), torch.arange(1000.0))
    assert [one["card"] for one in group.exchange({"card": device.index})] == [0, 1]
    group.settle()


def learned(model: Any, device: torch.device) -> torch.Tensor:
    ids = torch.arange(12, device=device).view(1, 12)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    weight = next(parameter for parameter in model.parameters() if parameter.requires_grad)
    (gradient,) = torch.autograd.grad(hidden.square().sum(), weight)
    return gradient.cpu()


def shards(device: torch.device) -> None:
    """Layers cut over the cards compute the bits of whole ones, and a rank holds its half of them and two layers more on the way."""
    whole = small_llama()
    held = sum(one.nbytes for one in whole.parameters())
    wanted = learned(whole.to(device), device)
    del whole
    cut, before = small_llama(), card.now()
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"fsdp": True, "ranks": SIZE}})
    mesh = sharded.mesh_of(config, device)
    assert mesh is not None and mesh.device_type == "cuda"
    trained = [one for one in cut.parameters() if one.requires_grad]
    sharded.shard_layers(cut, trained, mesh, device)
    kept = card.now() - before
    assert kept < held, (kept, held)
    assert torch.equal(learned(cut, device), wanted)
    gc.collect()  # a pass leaves cycles
    beside = trained[0].nbytes  # autograd's thread may hold the gradient it computed last
    assert card.now() - before <= kept + beside + 4096, (card.now() - before, kept, "what was gathered is gone again")


def main(number: int, folder: str) -> None:
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)
    store = dist.FileStore(f"{folder}/store", SIZE)  # type: ignore[attr-defined]
    group = Group(number, SIZE, store, lambda: False, together=True)
    adds(group, device)
    shards(device)
    print("ok", number, flush=True)
    store.set(f"over-{number}", "1")
    store.wait([f"over-{one}" for one in range(SIZE)])
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        main(int(sys.argv[1]), sys.argv[2])
    with tempfile.TemporaryDirectory() as place:
        ranks = [subprocess.Popen([sys.executable, __file__, str(number), place]) for number in range(SIZE)]
        sys.exit(max(rank.wait() for rank in ranks))
