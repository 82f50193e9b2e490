"""Arithmetic before the run: does it fit, and how many tokens go through the model at once. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.core.config import Config
from holdfast.core.files import Json
from holdfast.core.modelfolder import ModelFacts

_BYTES = {"fp32": 4, "bf16": 2}
_USABLE_SHARE = 0.8  # of the capacity; the rest is the system's, the interpreter's and the allocator's
_LIMIT_SHARE = 0.95
_LARGEST_MICRO_BATCH = 8192  # tokens; beyond it a step gains nothing and costs memory
_WORKSPACE_BYTES = 400 << 20  # interpreter and imported libraries, measured: 340 MB


def make_plan(config: Config, model: ModelFacts, machine: Json, lengths: Json) -> Json:
    """Memory by kind in bytes, tokens per micro-batch, and whether the run fits into the capacity.

    `lengths`: {max, mean, rows} of the training rows in tokens. The capacity is the device's, never what happens to be free.
    """
    layers = model.number("num_hidden_layers", "n_layer", default=12)
    hidden = model.number("hidden_size", "n_embd", default=768)
    middle = model.number("intermediate_size", "n_inner", default=4 * hidden)
    heads = model.number("num_attention_heads", "n_head", default=12)
    vocabulary = model.number("vocab_size", default=32000)
    width = _BYTES[config.train.precision]
    total = sum(_size(shape) for shape in model.shapes.values())
    trainable = sum(config.adapter.r * sum(shape) for shape in _adapted(model, config.adapter.targets))
    dropout = 7 * hidden * 5 if config.adapter.dropout else 0
    attention = 3 * heads * int(lengths["max"]) * width if config.train.attention == "eager" else 0
    per_token = layers * ((16 * hidden + 5 * middle) * width + dropout + attention)
    logits_per_token = vocabulary * 4 * 3
    fixed = {"weights": total * width, "adapter": trainable * 4, "gradients": trainable * 4, "optimizer": trainable * 8}
    capacity = _capacity(machine)
    budget = config.train.micro_batch_tokens or _micro_batch(config, capacity, sum(fixed.values()), per_token + logits_per_token, lengths)
    largest = max(budget, int(lengths["max"]))  # a row longer than the budget is a micro-batch of its own
    spent = fixed | {"activations": largest * per_token, "logits": largest * logits_per_token, "workspace": _WORKSPACE_BYTES}
    peak = sum(spent.values())
    per_step = config.train.effective_batch * lengths["mean"]
    return {
        "fits": None if capacity is None else peak <= capacity * _USABLE_SHARE,
        "peak_bytes": peak,
        "capacity_bytes": capacity,
        "bytes": spent,
        "params": {"total": total, "trainable": trainable},
        "micro_batch_tokens": budget,
        "checkpointed_layers": config.train.checkpointed_layers or 0,
        "accumulation": min(config.train.effective_batch, max(1, round(per_step / budget))),
        "reasons": _reasons(config, capacity, budget, peak, lengths),
    }


def _micro_batch(config: Config, capacity: int | None, fixed: int, per_token: int, lengths: Json) -> int:
    """Tokens per micro-batch: what fits, at most the whole step, at least the longest row."""
    longest = int(lengths["max"])
    whole_step = config.train.effective_batch * longest
    fitting = int((capacity * _USABLE_SHARE - fixed - _WORKSPACE_BYTES) / per_token) if capacity else _LARGEST_MICRO_BATCH
    return max(longest, min(whole_step, fitting, _LARGEST_MICRO_BATCH))


def _capacity(machine: Json) -> int | None:
    """Bytes of the device the run uses: the first GPU, else main memory."""
    gpus = machine.get("gpus") or []
    value = gpus[0].get("memory_bytes") if gpus else machine.get("memory_bytes")
    return value if isinstance(value, int) else None


def _adapted(model: ModelFacts, targets: str | list[str]) -> list[tuple[int, ...]]:
    """Shapes of the weights an adapter sits on: the named ones, or every matrix but embeddings and the output layer."""
    matrices = {name.removesuffix(".weight"): shape for name, shape in model.shapes.items() if name.endswith(".weight") and len(shape) == 2}
    if isinstance(targets, list):
        return [shape for name, shape in matrices.items() if name.rpartition(".")[2] in targets or name in targets]
    return list(model.linear().values())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


def _reasons(config: Config, capacity: int | None, budget: int, peak: int, lengths: Json) -> list[str]:
    reasons: list[str] = []
    if config.train.micro_batch_tokens:
        reasons.append(f"micro_batch_tokens = {budget} as the config says")
    elif capacity is None:
        reasons.append(f"micro_batch_tokens = {budget}; the machine's memory is unknown, so this is not checked against it")
    else:
        reasons.append(f"micro_batch_tokens = {budget}, a peak of {_gib(peak)} of {_gib(capacity)}, at most {_USABLE_SHARE:.0%} of it used")
    reasons.append(f"longest row {lengths['max']} tokens, mean {lengths['mean']:.0f}, {lengths['rows']} training rows")
    return reasons


def _gib(value: float) -> str:
    return f"{value / 2**30:.2f} GiB"


def settings_of(config: Config, plan: Json, machine: Json, threads: int) -> dict[str, Any]:
    """The settings a run begins with: the first entry of its timeline. `threads`: CPU threads this process may use."""
    chosen = config.train.deterministic
    return {
        "attention": config.train.attention,
        "dtype": config.train.precision,
        "packing": config.train.packing,
        "own_head": False,
        "micro_batch_tokens": plan["micro_batch_tokens"],
        "checkpointed_layers": plan["checkpointed_layers"],
        "memory_limit_bytes": config.train.memory_limit or _memory_limit(machine),
        "threads": config.train.threads or threads,
        "deterministic": not machine.get("gpus") if chosen is None else chosen,
        "steps": plan["steps"],
        "samples": plan["samples"],
    }


def _memory_limit(machine: Json) -> int | None:
    """Where running out of memory freezes the machine (no GPU, or one that lives on main memory), a limit below all of it."""
    gpus = machine.get("gpus") or []
    total = machine.get("memory_bytes")
    if total is None or (gpus and not gpus[0].get("integrated")):
        return None
    return int(total * _LIMIT_SHARE)
