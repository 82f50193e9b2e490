"""Arithmetic before the run: does it fit, and how many tokens go through the model at once. Pure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from holdfast.base.files import Json
from holdfast.base.versions import within
from holdfast.base_model.folder import ModelFacts
from holdfast.book.knowledge import has_fused_attention
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.config.train import Train
from holdfast.machine.facts import FREEZE_WHEN_FULL
from holdfast.machine.machine_file import read, training_devices
from holdfast.planning.memory.arithmetic import (
    Attends,
    Footprint,
    cut_between,
    footprint,
    in_pieces,
    kept_away,
    layers_bytes,
    trained_bytes,
)
from holdfast.planning.memory.trained_size import reached_by_part, trainable_parameters, trained_by_part, weights_by_part
from holdfast.planning.precision import choose_precision
from holdfast.planning.ranks import branches_of, parts_per_step, ranks_of
from holdfast.run.plan import Bytes, Course, Params, Plan, learning

AnyPlan = TypeVar("AnyPlan", bound=Plan)
AT_ONCE = ">=2.5"  # torch whose FlashAttention takes bounds of sequences and windows, under a private name until 2.11
USABLE_SHARE = 0.8  # of the capacity; the rest is the system's, the interpreter's and the allocator's
_LIMIT_SHARE = 0.95
_LIMIT_SHARE_OF_A_CARD = 0.9  # where a full card hangs the machine; others refuse by themselves
_LARGEST_MICRO_BATCH = {"cpu": 2048, "gpu": 8192}  # tokens; beyond it a step gains nothing and costs memory
# A trainer beside its tensors: interpreter, libraries, threads, and what they load when they first compute. Measured: 573 to 583 MiB on
# two threads with torch 2.13, transformers 5.23 and PEFT 0.21.
PROCESS_BYTES = 592 << 20
CARD_RESERVE, FREEZING_RESERVE = 0.25, 0.35  # of a card, and of one whose driver hangs the machine when it is full
_OFF, _OFF_BYTES = 0.25, 192 << 20  # how far a trace may be from the closed form, either way: a share of it, and what allocators hold
CARD_CONTEXT = 600 << 20  # of a process on a card: driver, kernels, products' workspace; an estimate, inside what the reserve forgives


def make_plan(config: Config, model: ModelFacts, machine: Json, lengths: Json, fused_attention: bool = True, least: bool = False) -> Plan:
    """Plan memory by kind in bytes, tokens per micro-batch, recomputed layers, and whether the run fits into the capacity.

    `lengths` in tokens: {max, mean, rows} of the training rows, `step`: all of the largest step. The capacity is the device's, never what
    happens to be free. fused_attention: a GPU's torch has kernels of attention that hold no matrix of scores. least: choose the step that
    needs the fewest bytes, as far as the config leaves the choice.
    """
    precision, why = choose_precision(config, model, machine)
    attends = _attends(config, model, machine, precision, fused_attention) if training_devices(machine) else None
    need = footprint(config, model, precision, int(lengths["max"]), attends, begins_fused(config, precision, machine))
    pieces = attends or config.cuts_trained  # frozen layers that are cut save nothing on a CPU
    if pieces and config.train.fsdp and (ranks := ranks_of(config.train, machine)) > 1:
        need = in_pieces(need, model, ranks) if config.cuts_trained else cut_between(need, model, ranks, precision != "fp32")
    away = layers_bytes(config, model, precision) if attends and config.train.offload == "layers" else 0
    need = kept_away(need, away) if away else need
    away *= ranks_of(config.train, machine)
    trainable = trainable_parameters(config, model)
    moments = trained_bytes(config, trainable, attends is not None).away
    beside_card = away + moments
    gradients = need.fixed.get("gradients", 0) * (1 + branches_of(config.train))
    need = replace(need, fixed=need.fixed | {"snapshot": _snapshots(config, machine, trainable), "gradients": gradients})
    capacity = _capacity(machine)
    budget, checkpointed = _micro_batch(config, need, 0 if least else capacity, lengths, machine)
    # a row longer than the budget is a micro-batch of its own, and one of a step that is cut has the rows of a part
    largest = max(min(budget, part_tokens(config, machine, lengths)), int(lengths["max"]))
    beside = CARD_CONTEXT if training_devices(machine) else PROCESS_BYTES
    step = need.step(largest, checkpointed) | {"context": beside}
    spent = need.fixed | step
    loading = 0 if training_devices(machine) else need.loading + PROCESS_BYTES
    peak = max(sum(spent.values()), loading)
    per_step = config.train.effective_batch * lengths["mean"]
    return Plan(
        fits=None if capacity is None else peak <= usable(config.train, capacity),
        peak_bytes=peak,
        capacity_bytes=capacity,
        bytes=Bytes(**spent),
        params=Params(total=model.parameters(), trainable=trainable),
        learns=learning(trained_by_part(config, model), weights_by_part(model), reached_by_part(config, model)),
        weights_by_part=weights_by_part(model),
        precision=precision,
        micro_batch_tokens=budget,
        checkpointed_layers=checkpointed,
        accumulation=min(config.train.effective_batch, max(1, round(per_step / budget))),
        host_bytes=2 * PROCESS_BYTES + beside_card if beside_card else None,
        reasons=(
            *_reasons(config, capacity, budget, checkpointed, peak, lengths),
            why,
            *exactness(config, machine),
            *about_layers_away(config, machine, away),
            *about_moments_away(config, machine, moments),
        ),
    )


def quick_plan(config: Config, model: ModelFacts, machine: Json, lengths: Json) -> Plan:
    """Make the closed form's plan, judged by the limit that `holdfast plan` judges by. lengths as make_plan takes them.

    fits: None where the capacity is unknown, and where the least that the run needs is so near the limit that only a trace tells; unless it
    fits, the plan is of the step that needs the least.
    """
    fused = has_fused_attention(machine)
    least = make_plan(config, model, machine, lengths, fused, least=True)
    if least.capacity_bytes is None:
        return make_plan(config, model, machine, lengths, fused)
    reserved = reserve(config.train, machine, least.capacity_bytes)
    limit = least.capacity_bytes - reserved
    off = int(_OFF * least.peak_bytes) + _OFF_BYTES
    if least.peak_bytes + off <= limit:
        plan = make_plan(config, model, machine, lengths, fused)
        return plan.model_copy(update={"fits": True, "reserve_bytes": reserved})
    fits = False if least.peak_bytes - off > limit else None
    return least.model_copy(update={"fits": fits, "reserve_bytes": reserved})


def _attends(config: Config, model: ModelFacts, machine: Json, precision: str, fused: bool) -> Attends:
    """Predict how samples will attend on a GPU; where a plan cannot know, take the way that needs more."""
    if not fused:
        return "plainly"
    facts = read(machine)
    capped = model.text.get("attn_logit_softcapping") and facts.package("flash-attn") is None
    known = facts.torch is not None and within(facts.torch.version, AT_ONCE)
    at_once = known and precision == "bf16" and config.train.attention == "sdpa" and config.train.packing and not capped
    return "at once" if at_once else "apart"


def begins_fused(config: Config, precision: str, machine: Json) -> bool:
    """Return whether a run begins with fused kernels of LoRA layers; its start proves them, or leaves them out."""
    return bool(training_devices(machine) and read(machine).tritons()) and config.fusable(precision)


def reserve(train: Train, machine: Json, capacity: int) -> int:
    """Return the bytes of the device that a plan leaves to others: the system, other processes, a card's driver."""
    if train.memory_reserve is not None:
        return min(train.memory_reserve, capacity)
    gpus = training_devices(machine)
    if not gpus:
        return int(capacity * (1 - USABLE_SHARE))
    return int(capacity * (FREEZING_RESERVE if gpus[0].get("arch") in FREEZE_WHEN_FULL else CARD_RESERVE))


def usable(train: Train, capacity: int) -> float:
    """Return the bytes of a device that the closed form plans with: what train.memory_reserve leaves, by default a share."""
    return capacity * USABLE_SHARE if train.memory_reserve is None else max(0, capacity - train.memory_reserve)


def with_more(plan: AnyPlan, train: Train, kind: str, more: int) -> AnyPlan:
    """Return the plan with so many bytes of a kind more, and with whether it fits then."""
    parts = plan.bytes.model_copy(update={kind: getattr(plan.bytes, kind) + more})
    plan = plan.model_copy(update={"bytes": parts, "peak_bytes": plan.peak_bytes + more})
    if not plan.fits or plan.capacity_bytes is None:
        return plan
    left = usable(train, plan.capacity_bytes) if plan.reserve_bytes is None else plan.capacity_bytes - plan.reserve_bytes
    return plan.model_copy(update={"fits": plan.peak_bytes <= left})


def wanted_tokens(config: Config, machine: Json, lengths: Json) -> int:
    """Return the tokens of a micro-batch if memory were no limit: as the config says, else a step's, as far as more of them gain speed."""
    largest = _LARGEST_MICRO_BATCH["gpu" if training_devices(machine) else "cpu"]
    return config.train.micro_batch_tokens or max(int(lengths["max"]), min(int(lengths["step"]), largest))


def part_tokens(config: Config, machine: Json, lengths: Json) -> int:
    """Return the most tokens of one of the parts that a step is cut into, as if all of its rows were as long as the longest."""
    parts, longest, step = parts_per_step(config.train, ranks_of(config.train, machine)), int(lengths["max"]), int(lengths["step"])
    return step if parts == 1 else math.ceil(math.ceil(step / longest) / parts) * longest


def _micro_batch(config: Config, need: Footprint, capacity: int | None, lengths: Json, machine: Json) -> tuple[int, int]:
    """Choose (tokens per micro-batch, recomputed layers): the fewest such layers that let the longest row fit, then the most tokens."""
    longest = int(lengths["max"])
    fixed, asked = config.train.micro_batch_tokens, config.train.checkpointed_layers
    wanted = wanted_tokens(config, machine, lengths)
    if capacity is None:
        return wanted, asked or 0
    beside = CARD_CONTEXT if training_devices(machine) else PROCESS_BYTES
    room = usable(config.train, capacity) - sum(need.fixed.values()) - beside
    choices = range(need.layers + 1) if asked is None else [asked]
    floor = max(min(fixed or 0, part_tokens(config, machine, lengths)), longest)
    layers = next((n for n in choices if sum(need.step(floor, n).values()) <= room), choices[-1])
    return fixed or max(longest, min(wanted, need.tokens(room, wanted, layers))), layers


def _snapshots(config: Config, machine: Json, trainable: int) -> int:
    """Return the bytes of the capacity that snapshots take: 0 on a GPU; in main memory those of their file, where it lies there."""
    on_card, memory = bool(training_devices(machine)), machine.get("memory_bytes")
    size = trained_bytes(config, trainable, on_card).snapshots
    size //= ranks_of(config.train, machine) if config.cuts_trained else 1  # each rank's own part
    elsewhere = config.save.snapshot_dir or config.save.flush_snapshots or (memory and size > memory / 4)
    return 0 if on_card or elsewhere else size


def _capacity(machine: Json) -> int | None:
    """Return the bytes of the device the run uses: the first GPU, else main memory; None: unknown."""
    gpus = training_devices(machine)
    value = gpus[0].get("memory_bytes") if gpus else machine.get("memory_bytes")
    return value if isinstance(value, int) else None


def _reasons(config: Config, capacity: int | None, budget: int, checkpointed: int, peak: int, lengths: Json) -> list[str]:
    reasons: list[str] = []
    if config.train.micro_batch_tokens:
        reasons.append(f"micro_batch_tokens = {budget} as the config says")
    elif capacity is None:
        reasons.append(f"micro_batch_tokens = {budget}; the machine's memory is unknown, so this is not checked against it")
    else:
        own = config.train.memory_reserve
        most = f"{USABLE_SHARE:.0%}" if own is None else f"all but {_gib(own)} (train.memory_reserve)"
        reasons.append(f"micro_batch_tokens = {budget}, about {_gib(peak)} needed of {_gib(capacity)}, {most} of which may be used")
    if checkpointed:
        reasons.append(f"{checkpointed} layers are computed again in backward, because keeping them all would not fit")
    return [*reasons, about_rows(lengths)]


def about_rows(lengths: Json) -> str:
    """Describe the rows' lengths in a sentence."""
    about = f"longest row {lengths['max']} tokens, mean {lengths['mean']:.0f}, {lengths['rows']} training rows"
    return f"{about}; largest step {lengths['step']} tokens"


def about_layers_away(config: Config, machine: Json, away: int) -> list[str]:
    """Describe the effect of train.offload: layers. away: bytes in main memory."""
    if config.train.offload != "layers":
        return []
    if not training_devices(machine):
        return ["train.offload: layers does nothing here: there is no card, and the layers are in main memory anyway"]
    told = f"train.offload: layers: {_gib(away)} of frozen layers in main memory, two of them on the card"
    has, told = machine.get("memory_bytes"), f"{told}; each micro-batch brings all of them twice, and what that takes is unknown"
    processes = 1 + ranks_of(config.train, machine)
    if has and (needed := away + processes * PROCESS_BYTES) > has:
        return [told, f"this machine has {_gib(has)} of main memory, and the layers and {processes} processes take {_gib(needed)} of it"]
    return [told]


MAPPED = "memory is tight, so what is freed goes back to the system at once: no gaps, and steps that take about half as long again"


def exactness(config: Config, machine: Json) -> list[str]:
    """Say whether a killed run ends with the same bits as an undisturbed one; empty where it does without conditions."""
    if not training_devices(machine):
        return []
    if config.train.deterministic:
        return ["train.deterministic: kernels that add in one order, so that a run killed and resumed ends with the same bits"]
    return ["attention's backward pass adds in changing order on a GPU: the bits of two runs differ, unless train.deterministic is true"]


def about_moments_away(config: Config, machine: Json, moments: int) -> list[str]:
    """Describe the effect of train.offload: optimizer. moments: bytes in main memory."""
    if config.train.offload != "optimizer":
        return []
    if not training_devices(machine):
        return ["train.offload: optimizer does nothing here: there is no card, and the moments are in main memory anyway"]
    return [f"train.offload: optimizer: {_gib(moments)} of moments in main memory; each update brings them and takes them back"]


def _gib(value: float) -> str:
    return f"{value / 2**30:.2f} GiB"


def settings_of(config: Config, plan: Course, machine: Json, threads: int, steps: int, samples: int, ranks: int = 1) -> Settings:
    """Return the settings a run begins with: the first entry of its timeline.

    `threads`: CPU threads this process may use; `steps`, `samples`: of the whole run;
    `ranks`: that it begins with.
    """
    chosen, liger, on_gpu = config.train.deterministic, config.train.liger, bool(training_devices(machine))
    return Settings(
        device="cuda" if on_gpu else "cpu",
        attention=config.train.attention,
        dtype=plan.precision,
        frozen=config.train.frozen,
        double_quant=config.train.double_quant,
        liger=on_gpu and read(machine).package("liger-kernel") is not None if liger is None else liger,
        fused=begins_fused(config, plan.precision, machine),
        packing=config.train.packing and not config.adapter.kind.prefix,  # learned embeddings stand before each row
        varlen=on_gpu,
        own_head=False,
        all_learn=True,
        exact_start=True,
        own_dropout=False,
        rope_apart=True,
        micro_batch_tokens=plan.micro_batch_tokens,
        checkpointed_layers=plan.checkpointed_layers,
        memory_limit_bytes=config.train.memory_limit or _memory_limit(machine),
        threads=config.train.threads or max(1, threads // ranks),
        shards=parts_per_step(config.train, ranks),
        deterministic=not on_gpu if chosen is None else chosen,
        steps=steps,
        samples=samples,
    )


def _memory_limit(machine: Json) -> int | None:
    """Return a limit below all memory, in bytes, where running out freezes the machine (no GPU, unified memory, RDNA4); else None."""
    gpus = training_devices(machine)
    own = gpus[0].get("memory_bytes") if gpus else None
    if gpus and not gpus[0].get("integrated") and gpus[0].get("arch") in FREEZE_WHEN_FULL and isinstance(own, int):
        return int(own * _LIMIT_SHARE_OF_A_CARD)
    total = machine.get("memory_bytes")
    if total is None or (gpus and not gpus[0].get("integrated")):
        return None
    return int(total * _LIMIT_SHARE)
