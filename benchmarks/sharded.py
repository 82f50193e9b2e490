"""What a rank holds of a model whose layers are cut between ranks, and what a pass costs: python benchmarks/sharded.py [--layers 24].

Each number of ranks loads the same model from its files, cuts it, puts LoRA on it and takes three passes forward and back. Memory is what
the process itself holds (RssAnon of /proc/self/status) beyond its libraries, at the end of a pass: as it is, and once the C library has
given back what was freed (malloc_trim). Pages of the mapped files are the system's, shared by all ranks.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import LlamaConfig, LlamaForCausalLM

from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.memory.arithmetic import cut_between, footprint
from holdfast.trainer.model.frozen.sharded import mesh_of, shard_layers
from holdfast.trainer.model.layers.lora import use_lean_lora
from holdfast.trainer.model.load import load_base
from holdfast.trainer.model.trained.adapters import PeftAdapter

TOKENS, PASSES = 64, 3


def anonymous_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


def one_rank(rank: int, ranks: int, folder: str, store: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    tree = {"model": folder, "data": {"files": "f"}, "train": {"fsdp": True, "ranks": ranks, "precision": "fp32"}}
    config = Config.model_validate(tree)
    settings = Settings.model_construct(dtype="fp32", attention="sdpa", frozen="auto", double_quant=False)
    device = torch.device("cpu")
    importlib.import_module("torch.distributed.fsdp")
    before = anonymous_bytes()
    base, _ = load_base(config, settings, device, mapped=True)
    adapter = PeftAdapter(base, config, 1, device)
    use_lean_lora(adapter.model, cut=True)
    mesh = mesh_of(config, device)
    held = shard_layers(base, adapter.tensors.values(), mesh, device) if mesh else sum(4 * one.numel() for one in base.parameters())
    ids = torch.arange(TOKENS).view(1, -1)
    seconds = []
    for _ in range(PASSES):
        began = time.perf_counter()
        base.model(input_ids=ids, use_cache=False).last_hidden_state.square().sum().backward()
        seconds.append(time.perf_counter() - began)
    if rank == 0:
        facts = read_model(folder)
        whole = footprint(config, facts, "fp32", TOKENS)
        planned = (cut_between(whole, facts, ranks) if ranks > 1 else whole).fixed["weights"]
        kept = anonymous_bytes() - before
        ctypes.CDLL(None).malloc_trim(0)
        left = anonymous_bytes() - before
        columns = (planned, held, kept, left) if ranks > 1 else (planned, held, 0, 0)  # uncut, the weights stay in the files' pages
        print(f"{ranks:5}" + "".join(f"{size >> 20:13,}" for size in columns) + f"{min(seconds):13.3f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = LlamaConfig(
            vocab_size=512, hidden_size=512, intermediate_size=2048, num_hidden_layers=wanted.layers, num_attention_heads=8,
            num_key_value_heads=4,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(folder)
        print("ranks  planned MiB   pieces MiB     kept MiB  trimmed MiB     s a pass")
        for ranks in wanted.ranks:
            mp.spawn(one_rank, (ranks, folder, f"{folder}/store{ranks}"), nprocs=ranks)


if __name__ == "__main__":
    main()
