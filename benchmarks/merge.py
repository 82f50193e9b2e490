"""Merge a LoRA adapter into a 7B-sized model of zeros in a sparse file: memory beyond the largest tensor, and seconds a GB.

    python benchmarks/merge.py FOLDER [--layers 32]

The model is Llama 2 7B's shape in bf16 with no bytes on the disk; the merged model needs 13.5 GB there (4.3 GB with --layers 8).
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import load_codec
from holdfast.export.merge import write_merged
from holdfast.export.subject import read_subject

WIDE, INNER, WORDS, RANK = 4096, 11008, 32000, 16
ATTENTION, MLP = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    {"gate_proj": (INNER, WIDE), "up_proj": (INNER, WIDE), "down_proj": (WIDE, INNER)},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    arguments = parser.parse_args()
    base, adapter, out = (arguments.folder / name for name in ("base", "adapter", "merged"))
    for folder in (base, adapter, out):
        folder.mkdir(parents=True)
    shapes = make_base(base, arguments.layers)
    make_adapter(base, adapter, arguments.layers)
    subject = read_subject(adapter)
    codec = load_codec(EMBEDDED["tiny"])
    before = peak()
    began, cpu = time.perf_counter(), time.process_time()
    written = write_merged(subject, codec, out)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    size = sum(file.stat().st_size for file, _ in written)
    largest = max(2 * int(np.prod(shape)) for shape in shapes.values())
    found = {"layers": arguments.layers, "bytes": size, "files": len(written), "largest_tensor": largest}
    found |= {"peak_bytes": peak(), "peak_before": before, "beyond_largest": peak() - largest}
    found |= {"seconds_per_gb": round(seconds / size * 1e9, 2), "cpu_seconds_per_gb": round(cpu / size * 1e9, 2)}
    print(json.dumps(found))
    shutil.rmtree(out)


def peak() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_base(folder: Path, layers: int) -> dict[str, tuple[int, ...]]:
    """A model folder whose weights are a hole in a file."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (WORDS, WIDE),
        "lm_head.weight": (WORDS, WIDE),
        "model.norm.weight": (WIDE,),
    }
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.{name}.weight": (WIDE, WIDE) for name in ATTENTION}
        shapes |= {f"{at}mlp.{name}.weight": shape for name, shape in MLP.items()}
        shapes |= {f"{at}{name}.weight": (WIDE,) for name in ("input_layernorm", "post_attention_layernorm")}
    header, at = {}, 0
    for name, shape in shapes.items():
        end = at + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDE,
        "intermediate_size": INNER,
        "vocab_size": WORDS,
    }
    config |= {
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(EMBEDDED["tiny"] / name, folder / name)
    return shapes


def make_adapter(base: Path, folder: Path, layers: int) -> None:
    """LoRA of rank 16 on every linear layer, random."""
    rng, tensors = np.random.default_rng(0), {}
    linear = {f"self_attn.{name}": (WIDE, WIDE) for name in ATTENTION} | {f"mlp.{name}": shape for name, shape in MLP.items()}
    for layer in range(layers):
        for name, (up, down) in linear.items():
            at = f"base_model.model.model.layers.{layer}.{name}."
            tensors[f"{at}lora_A.weight"] = rng.normal(size=(RANK, down)).astype(np.float32)
            tensors[f"{at}lora_B.weight"] = rng.normal(size=(up, RANK)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": 32,
        "base_model_name_or_path": str(base),
        "target_modules": sorted({*ATTENTION, *MLP}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
