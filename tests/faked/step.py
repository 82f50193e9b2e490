"""One real training step of a model of a given shape on the pretended card, and what it cost: the task, the optimizer, gate and update."""

from __future__ import annotations

import gc
import json
import struct
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faked.card  # noqa: F401  (before torch)

# isort: split
import numpy as np
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from faked.watch import Watch
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.data.token_set.token_set import TokenSet
from holdfast.planning.memory.arithmetic import Attends, footprint
from holdfast.trainer.model import load as loading
from holdfast.trainer.optim.optimizer import AdamW
from holdfast.trainer.step.step import compute_gradients, update
from holdfast.trainer.tasks.text.task import Sft
from holdfast.trainer.traced import stand_in

_QWEN = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "max_position_embeddings": 8192}
_MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "max_position_embeddings": 8192, "sliding_window": None}
_QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 8192, "head_dim": 128}
_GEMMA = {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "max_position_embeddings": 8192, "head_dim": 256}
_GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "max_position_embeddings": 8192, "head_dim": 256}
_GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "max_position_embeddings": 8192, "head_dim": 256}
_LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 8192}


def _shape(about: dict[str, Any], hidden: int, middle: int, layers: int, heads: int, groups: int, words: int, tied: bool) -> dict[str, Any]:
    return about | {
        "hidden_size": hidden,
        "intermediate_size": middle,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "vocab_size": words,
        "tie_word_embeddings": tied,
    }


SHAPES = {
    "qwen0.5b": _shape(_QWEN, 896, 4864, 24, 14, 2, 151936, True),
    "qwen7b": _shape(_QWEN, 3584, 18944, 28, 28, 4, 152064, False),
    "llama8b": _shape(_LLAMA, 4096, 14336, 32, 32, 8, 128256, False),
    "mistral7b": _shape(_MISTRAL, 4096, 14336, 32, 32, 8, 32768, False),
    "wide": _shape(_LLAMA, 2048, 8192, 24, 32, 32, 51200, False),
    "qwen3-4b": _shape(_QWEN3, 2560, 9728, 36, 32, 8, 151936, True),
    "gemma-2b": _shape(_GEMMA, 2048, 16384, 18, 8, 1, 256000, True),
    "gemma2-2b": _shape(_GEMMA2 | {"attn_logit_softcapping": 50.0}, 2304, 9216, 26, 8, 4, 256000, True),
    "gemma3-1b": _shape(_GEMMA3 | {"sliding_window": 512}, 1152, 6912, 26, 4, 1, 262144, True),
}


@dataclass(frozen=True)
class Traced:
    """A step as it was watched. fixed, peak: bytes before it and at most; plan: what planning/memory/arithmetic.py counts on, by kind."""

    watch: Watch
    layers: int
    tokens: int
    micro_batches: int
    fixed: int
    peak: int
    plan: dict[str, int]

    @property
    def ms(self) -> dict[str, float]:
        """The step at the card's speed: all, products, all else, and the output layer's part of it."""
        seconds = self.watch.seconds
        total, products = sum(seconds.values()), sum(s for (_, name), s in seconds.items() if name == "products")
        head = sum(s for (part, _), s in seconds.items() if part == "head")
        return {"all": 1e3 * total, "products": 1e3 * products, "others": 1e3 * (total - products), "head": 1e3 * head}


def trace(
    model: str | dict[str, Any],
    folder: Path,
    tokens: int = 8192,
    length: int = 256,
    rank: int = 32,
    dropout: float = 0.0,
    layers: int | None = None,
    **changed: Any,
) -> Traced:
    """A step of `tokens` in samples of `length`, 40 % of them learned. model: one of SHAPES, or what its config.json says.

    layers: how deep it is, where that is not the model's own depth; `changed`: settings of the run.
    """
    about = SHAPES[model] if isinstance(model, str) else model
    write_model(about | ({} if layers is None else {"num_hidden_layers": layers}), folder)
    adapter = {"r": rank, "alpha": 2 * rank, "dropout": dropout}
    fewer = {key: changed[key] for key in ("frozen", "double_quant") if key in changed}
    train = {"attention": changed.get("attention", "sdpa"), **fewer}
    config = Config.model_validate({"model": str(folder), "data": {"files": "x"}, "adapter": adapter, "train": train})
    chosen = {"dtype": "bf16", "fused": True, "varlen": True, "micro_batch_tokens": tokens, "deterministic": False}
    settings = Settings.model_validate({"steps": 1, "samples": 1, "threads": 1} | chosen | changed)
    rows = made_rows(tokens, length)
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        own = transformers.AutoModelForCausalLM.from_config
        made = SimpleNamespace(from_pretrained=_without_weights, from_config=own)
        loading.loader = lambda _facts: made  # type: ignore[assignment]
        if fewer:
            vars(stand_in)["bitsandbytes"] = lambda _why: SimpleNamespace(functional=SimpleNamespace(QuantState=_state))
            vars(loading)["hold_quantised"] = stand_in.hold_unfilled
        with torch.device("cuda:0") if fewer else nullcontext():  # where else is it moved to, which fakes of it cannot follow
            task = Sft(config, settings, rows, torch.device("cuda:0"))
        optimizer = AdamW(task.artifact, config.train)
        gc.collect()
        watch.forget()
        fixed = watch.now
        numbers = list(range(len(rows)))
        phases: list[str] = []

        def announce(phase: str, *_: Any) -> float:
            phases.append(phase)
            return 1.0

        computed = compute_gradients(task, optimizer, 1, numbers, settings.micro_batch_tokens, announce)
        update(optimizer, computed, 1e-3, 0.5)
    model_facts = read_model(str(folder))
    need = footprint(config, model_facts, settings.dtype, length, _attends(about, settings), fused=settings.fused)
    largest = max(settings.micro_batch_tokens, length)
    plan = need.fixed | need.step(largest, settings.checkpointed_layers)
    return Traced(watch, need.layers, tokens, phases.count("forward"), fixed, watch.peak, plan)


def _state(**parts: Any) -> SimpleNamespace:
    """As bitsandbytes' QuantState, whose package looks for a card's driver."""
    return SimpleNamespace(**({"state2": None, "offset": None} | parts), nested="state2" in parts)


def _attends(about: dict[str, Any], settings: Settings) -> Attends:
    """As planning/plan.py says it; but fakes know torch's fused attention as the plain operations it can be made of."""
    at_once = settings.varlen and settings.dtype == "bf16" and settings.attention == "sdpa" and not about.get("attn_logit_softcapping")
    return "at once" if at_once else "plainly"


def made_rows(tokens: int, length: int, learned_share: float = 0.4) -> TokenSet:
    count = tokens // length
    learned = np.zeros((count, length), np.uint8)
    learned[:, length - int(length * learned_share) :] = 1
    starts = np.arange(count + 1) * length
    return TokenSet(
        np.ones(count * length, np.int32), learned.reshape(-1), starts, np.zeros(count, np.int32), np.arange(1, count + 1), ("rows",), 0, 0
    )


def write_model(about: dict[str, Any], folder: Path) -> None:
    """A model folder as far as its facts go: config.json, and the header of bf16 weights over a file that holds nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(about))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    header, at = {}, 0
    for name, parameter in model.named_parameters():  # a tied one once
        size = 2 * parameter.numel()
        header[name] = {"dtype": "BF16", "shape": list(parameter.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


def _without_weights(folder: Path, dtype: torch.dtype, attn_implementation: str, **_loading: Any) -> Any:
    about = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(about, dtype=dtype, attn_implementation=attn_implementation)
    return model, {"mismatched_keys": set(), "missing_keys": set(), "unexpected_keys": set()}


def facts(traced: Traced) -> dict[str, Any]:
    """What a step cost, as JSON has it."""
    watch = traced.watch
    return {
        "layers": traced.layers,
        "tokens": traced.tokens,
        "micro_batches": traced.micro_batches,
        "launches": sum(watch.launches.values()),
        "by_operation": dict(watch.launches.most_common()),
        "waits": dict(watch.waits),
        "copies": dict(watch.copies),
        "strangers": dict(watch.strangers),
        "types": [[name, kind, count] for (name, kind), count in watch.types.most_common()],
        "ms": traced.ms,
        "fixed": traced.fixed,
        "peak": traced.peak,
        "plan": traced.plan,
    }
