"""Which paths a run takes on a machine, in words: what plan and settings choose there for two common shapes of model. Computes nothing."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.files import Json
from holdfast.base.versions import within
from holdfast.base_model.folder import ModelFacts
from holdfast.book.knowledge import attention_kernels, has_fused_attention
from holdfast.checkup.environment import confirmed
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.machine.machine_file import read, training_devices
from holdfast.planning.plan import AT_ONCE, USABLE_SHARE, make_plan, settings_of
from holdfast.planning.standby import standby_mode
from holdfast.run.plan import Plan

_TOKENS = 1024  # of the longest row in the shapes below
_SHAPES: dict[str, dict[str, int]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "vocab_size": 151936, "kv": 128},
    "7B": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "vocab_size": 152064, "kv": 512},
}


def paths(facts: Json) -> dict[str, str]:
    """Describe, by subject, a run with the defaults on this machine; what only its start can prove is told as that."""
    gpus, config = training_devices(facts), _config()
    fused = has_fused_attention(facts)
    plans = {name: make_plan(config, _model(shape), facts, _lengths(), fused) for name, shape in _SHAPES.items()}
    plan = plans["7B"]
    settings = settings_of(config, plan, facts, 1, steps=1, samples=1)
    capacity = plan.capacity_bytes
    told = {
        "device": _named(gpus[0]) if gpus else "the CPU",
        "precision": settings.dtype,
        "attention": _attention(facts, gpus, settings),
        "Liger": "yes, once proven" if settings.liger else "no: " + ("liger-kernel is not installed" if gpus else "no GPU"),
        "deterministic kernels": "yes" if settings.deterministic else "no, unless train.deterministic is true",
        "memory planned with": "unknown" if capacity is None else f"{USABLE_SHARE:.0%} of {capacity / 2**30:.1f} GiB",
        "memory limit": _limit(settings.memory_limit_bytes, capacity),
        "standby": {"model": "the model built", "imports": "imports alone", "off": "none"}[standby_mode(config, plan, facts)],
        "set for the trainer": ", ".join(f"{advice.name}={advice.value}" for advice in confirmed(facts)) or "nothing",
    }
    if len(gpus) > 1:
        told["cards"] = f"the first of {len(gpus)}; train.ranks: auto trains on all of its kind"
    return told | {f"{name} shape, r=16, rows of {_TOKENS}": _fits(one) for name, one in plans.items()}


def _config() -> Config:
    tree = {"model": "m", "data": {"files": "f"}, "adapter": {"r": 16, "alpha": 32}, "train": {"max_tokens": _TOKENS}}
    return Config.model_validate(tree)


def _lengths() -> Json:
    return {"max": _TOKENS, "mean": _TOKENS / 2, "rows": 1000, "step": 16 * _TOKENS}


def _model(shape: dict[str, int]) -> ModelFacts:
    """Make the facts of a bf16 model of these sizes, laid out as Qwen2.5."""
    hidden, middle, kv, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["kv"], shape["vocab_size"]
    layer = {"q_proj": (hidden, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, hidden)}
    layer |= {"gate_proj": (middle, hidden), "up_proj": (middle, hidden), "down_proj": (hidden, middle)}
    layers = range(shape["num_hidden_layers"])
    shapes: dict[str, tuple[int, ...]] = {f"layers.{at}.{name}.weight": size for at in layers for name, size in layer.items()}
    shapes |= {"embed_tokens.weight": (vocabulary, hidden)} | ({"lm_head.weight": (vocabulary, hidden)} if hidden > 1000 else {})
    return ModelFacts(Path("-"), dict(shape), shapes, 0, "BF16")


def _named(gpu: Json) -> str:
    name, arch = gpu.get("name") or gpu.get("vendor") or "a GPU", gpu.get("arch")
    return f"{name} ({arch})" if arch else str(name)


def _attention(facts: Json, gpus: list[Json], settings: Settings) -> str:
    """Say how packed samples attend, all at once or one by one, and by what kernel on an AMD card."""
    alone = "each sample by itself"
    if not gpus:
        return f"{alone}, fused"
    machine = read(facts)
    torch = machine.torch
    rocm = torch is not None and torch.backend == "rocm"
    found = attention_kernels(machine, gpus[0].get("arch"))
    kind = alone
    if torch is not None and settings.varlen and settings.dtype == "bf16" and found == "stable" and within(torch.version, AT_ONCE):
        kind = f"all samples at once where that is proven, else {alone}"
    return f"{kind}; {_KERNELS[found]}" if rocm else kind


_KERNELS = {
    "stable": "fused kernels (AOTriton)",
    "experimental": "plain products: fused kernels are behind TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1",
    None: "plain products: no fused kernels for this architecture",
}


def _limit(limit: int | None, capacity: int | None) -> str:
    if limit is None:
        return "none: a full card refuses by itself"
    share = f" ({limit / capacity:.0%})" if capacity else ""
    return f"{limit / 2**30:.1f} GiB{share}, beyond which allocations fail rather than freeze the machine"


def _fits(plan: Plan) -> str:
    """Say what of a shape's plan a reader wants to know first."""
    fits = {True: "fits", False: "does not fit", None: "cannot be judged: memory unknown"}[plan.fits]
    again = f", {plan.checkpointed_layers} layers computed again" if plan.checkpointed_layers else ""
    return f"{fits}: {plan.micro_batch_tokens:,} tokens at once{again}, a peak of {plan.peak_bytes / 2**30:.1f} GiB"
