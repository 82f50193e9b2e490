"""Plan a run before there are weights or a card: trace its step, choose what fits, say what else would. Writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json
from holdfast.base.tasks import kind_of
from holdfast.base.units import gib
from holdfast.base_model.folder import ModelFacts, read_description
from holdfast.base_model.forms import LAYERS
from holdfast.base_model.packed import packed_as, widened_from
from holdfast.base_model.sizes import refuse_nonsense
from holdfast.book.knowledge import has_fused_attention
from holdfast.config.adapter import Adapter
from holdfast.config.config import Config
from holdfast.config.settings import Dtype, Frozen, Settings
from holdfast.config.train import ROUNDED_AT_RANDOM
from holdfast.machine.machine_file import read, training_devices
from holdfast.machine.system import usable_threads
from holdfast.planning.advice import far_off
from holdfast.planning.memory.arithmetic import TrainedBytes, gathered_bytes, layers_bytes, trained_bytes
from holdfast.planning.memory.demand import Demand, cut_between, in_pieces, kept_away, with_branches
from holdfast.planning.memory.fit import (
    IN_FOUR_BITS,
    IN_HALVES,
    LAYERS_AWAY,
    MOMENTS_AWAY,
    Choice,
    Room,
    Shape,
    Sweep,
    alternatives,
    choose,
    on_several,
)
from holdfast.planning.memory.frozen_form import as_it_comes, refuse_experts
from holdfast.planning.past_runs import correct_from_history, with_duration
from holdfast.planning.plan import (
    CARD_CONTEXT,
    MAPPED,
    PROCESS_BYTES,
    about_layers_away,
    about_moments_away,
    exactness,
    part_tokens,
    reserve,
    settings_of,
    wanted_tokens,
    with_more,
)
from holdfast.planning.precision import choose_precision
from holdfast.planning.ranks import PARTS, branches_of, parts_per_step, ranks_of
from holdfast.planning.siblings import largest_sibling
from holdfast.planning.side_by_side import StepSize, more_logits, parts_ahead, side_by_side
from holdfast.planning.tracing import Tracer, tracer
from holdfast.planning.workload import longest_row, workload
from holdfast.run.plan import Bytes, Course, Plan, learning

_SHORTEST = 8  # tokens of a row that is worth a trace
_TRACED_WHOLE = 200  # layers; a trace takes some 0.1 s for each, and no model of today has as many


@dataclass(frozen=True)
class PlanResult:
    """A plan, what its step was found to need, and the settings it was traced with."""

    plan: Plan
    demand: Demand
    settings: Settings
    model: ModelFacts


def plan_run(config: Config, machine: Json, limit: int | None = None, curve: bool = False, probes: Json | None = None) -> PlanResult:
    """Plan for the first GPU of `machine`, else its main memory.

    limit: a capacity in bytes, in place of the device's; probes: what the doctor measured of this machine. Raises Stop.
    """
    with planner(config, machine) as work:
        planned = work.plan(limit, curve)
    plan = correct_from_history(config, machine, planned.plan)
    told = [
        *far_off(config, plan.params.total),
        *([sibling] if plan.fits is False and (sibling := largest_sibling(config.model, plan)) else []),
    ]
    plan = plan.model_copy(update={"reasons": (*plan.reasons, *told)})
    ahead = workload(config, planned.model, work.rows.longest)
    if isinstance(ahead, str):
        unseen = f"how long it takes is unknown: {ahead}; memory is planned for rows of {work.rows.longest:,} tokens"
        plan = plan.model_copy(update={"reasons": (*plan.reasons, _about(plan), unseen), "unseen_rows": work.rows.longest})
    else:
        size = StepSize(work.rows.longest, work.rows.step, ahead.row * config.train.effective_batch, plan.params.total)
        parts = parts_ahead(config, planned.settings, size, plan.peak_bytes)
        at_once = int(side_by_side(config, planned.settings, size)[0].get("at_once", 1))
        vocabulary = planned.model.number("vocab_size", default=32000)
        plan = with_more(plan, config.train, "logits", more_logits(config, planned.settings, at_once, work.rows.step, vocabulary))
        told = [_about(plan), *about_longest(ahead.longest, work.rows.longest), *ahead.lost, *([parts] if parts else [])]
        plan = plan.model_copy(update={"reasons": (*plan.reasons, *told)})
        here = machine | {"probes": probes or machine.get("probes")}
        plan = with_duration(config, here, plan, ahead.tokens, ahead.checked(config), planned.model.text)
    return replace(planned, plan=plan)


@dataclass(frozen=True)
class RowLengths:
    """What a run's rows come to. longest: tokens of the longest row; step: of the largest step."""

    longest: int
    step: int


@contextlib.contextmanager
def planner(config: Config, machine: Json, rows: RowLengths | None = None, known: ModelFacts | None = None) -> Iterator[Planner]:
    """Yield the planner of one config's model. rows: None plans for the largest the config allows; known: facts read of the model.

    Raises Stop where its model is none.
    """
    kind = kind_of(config)
    if kind.traced is None or not config.model:
        text = f"there is no plan of {kind.what} before it begins (task: {config.task})"
        raise Stop(BLOCKED, text, "its memory is measured when it begins: holdfast train")
    model = known or read_description(config.model)
    config = as_it_comes(config, model)
    refuse_nonsense(model)
    with tracer() as child:
        model = replace(model, shapes=model.shapes or child.shapes(config, model))
        refuse_experts(config, model)
        yield Planner(config, machine, model, child, rows)


def with_card(machine: Json, card: Json) -> Json:
    """Return this machine with another card in it, and with what a torch for such a card brings along."""
    version = str((machine.get("torch") or {}).get("version") or "2.13.0").partition("+")[0]
    amd = card["vendor"] == "amd"
    torch: Json = {"version": version + ("+rocm7.1" if amd else "+cu128"), "hip": "7.1" if amd else None, "cuda": None if amd else "12.8"}
    packages = {"triton": "3.5.1"} | {name: value for name, value in (machine.get("packages") or {}).items() if value}
    return machine | {"gpus": [card], "torch": torch | {"devices": [card]}, "packages": packages, "probes": {}}


def _with(config: Config, **train: Any) -> Config:
    """Return the config with other values of `train`."""
    return config.model_copy(update={"train": config.train.model_copy(update=train)}) if train else config


class Planner:
    """Traces steps of one model and chooses among them."""

    def __init__(self, config: Config, machine: Json, model: ModelFacts, child: Tracer, rows: RowLengths | None = None) -> None:
        self.config, self.machine, self.model, self.child = config, machine, model, child
        gpus = training_devices(machine)
        self.gpu = gpus[0] if gpus else None
        self.precision, self.why = choose_precision(config, model, machine)
        self.fused_attention = has_fused_attention(machine)
        allowed = longest_row(config, model)
        self._counted = rows is not None
        self.rows = rows or RowLengths(allowed, allowed * config.train.effective_batch)
        layers = next(model.text[name] for name in LAYERS if name in model.text)
        period, least = _period(model.text), _least(config.adapter, layers)
        self.sweep = Sweep(self._traced, layers, period, least, lambda dtype: layers_bytes(config, model, dtype) / layers)

    def plan(self, limit: int | None, curve: bool) -> PlanResult:
        """Plan the run and list its alternatives. limit: as in plan_run; curve: trace bytes over the step, too."""
        choice, room = self._choice(limit)
        if curve:
            choice = Choice(choice.shape, self.ask(choice.shape, curve=True))
        others = alternatives(self.sweep, room, choice, self._halves_speed(), tuple(self._lighter()))
        if not room.fits(choice.demand) and self._could_be_cut():
            others.append(on_several(self.sweep, room, choice, PARTS.bit_length() - 1))
        planned = self._planned(choice, room)
        return replace(planned, plan=planned.plan.model_copy(update={"alternatives": tuple(others)}))

    def _lighter(self) -> Iterator[str]:
        """Yield lighter ways to hold trained or frozen weights that the config leaves open."""
        train, kind = self.config.train, self.config.adapter.kind
        if self.config.cuts_trained:
            return
        if not (kind.own_weights or train.fsdp or train.frozen_format.width) and self._takes_four_bits():
            yield IN_FOUR_BITS
        if self.gpu and train.offload == "off":
            if kind.frozen and not train.fsdp:
                yield LAYERS_AWAY
            elif train.optimizer_kind.moments == "own":
                yield MOMENTS_AWAY
        if kind.own_weights and train.weights == "fp32" and train.optimizer in ROUNDED_AT_RANDOM and train.precision != "fp16":
            yield IN_HALVES

    def _takes_four_bits(self) -> bool:
        """Return whether the model's frozen layers can be held in 4 bits beside what the adapter changes."""
        if packed_as(self.model.config) is not None:
            return False
        try:
            refuse_experts(_with(self.config, frozen="nf4"), self.model)
        except Stop:
            return False
        return True

    def _could_be_cut(self) -> bool:
        """Return whether the run could be one of several cards' that shard frozen layers, and is not yet."""
        train = self.config.train
        if self.gpu is None or train.ranks != 1 or train.reduction_parts is not None or self.config.adapter.kind.fsdp != "frozen":
            return False
        try:
            tree = self.config.model_dump(mode="json")
            Config.model_validate(tree | {"train": tree["train"] | {"ranks": 2, "fsdp": True}})
        except ValueError:
            return False
        return True

    def _pieces(self) -> int:
        """Return the number of ranks that shard frozen layers; 1: each holds them whole, as on a CPU."""
        cut = self.gpu is not None and self.config.train.fsdp and self.config.adapter.kind.fsdp == "frozen"
        return ranks_of(self.config.train, self.machine) if cut else 1

    def chosen(self) -> PlanResult:
        """Plan the run without alternatives, in as few traces as possible."""
        return self._planned(*self._choice(None))

    def _planned(self, choice: Choice, room: Room) -> PlanResult:
        return PlanResult(self._plan(choice, room), choice.demand, self._settings(choice.shape), self.model)

    def _choice(self, limit: int | None) -> tuple[Choice, Room]:
        own = self.gpu.get("memory_bytes") if self.gpu else self.machine.get("memory_bytes")
        capacity = limit or (own if isinstance(own, int) else None)
        wanted = self.wanted()
        room = self.room(self.sweep(wanted), capacity)
        train = self.config.train
        choice = choose(self.ask, self.sweep, room, wanted, train.micro_batch_tokens is not None, train.checkpointed_layers is not None)
        return choice, room

    def wanted(self) -> Shape:
        """Return the shape of the step if memory were no limit."""
        away = self.gpu is not None and self.config.train.offload == "layers"
        train = self.config.train
        again, branches = train.checkpointed_layers or 0, branches_of(train)
        longest, lengths = self.rows.longest, {"max": self.rows.longest, "step": self.rows.step}
        tokens = min(wanted_tokens(self.config, self.machine, lengths), part_tokens(self.config, self.machine, lengths))
        rows = max(1, tokens // longest)
        given = train.micro_batch_tokens is not None and train.packing and not self.config.adapter.kind.prefix
        rest = max(0, tokens - rows * longest) if given else 0  # where the plan chooses, a micro-batch is so many whole rows
        rest = rest if rest >= _SHORTEST else 0
        return Shape(longest, rows, self.precision, again, away=away, cut=self._pieces(), branches=branches, rest=rest)

    def room(self, need: Demand, capacity: int | None) -> Room:
        """Return what lies beside a step: interpreter and libraries, snapshots kept in main memory; on a card a context."""
        beside = CARD_CONTEXT if self.gpu else self._process(need) + self._snapshots(need)
        return Room(capacity, reserve(self.config.train, self.machine, capacity or 0), beside, heap=self.gpu is None)

    def _process(self, need: Demand) -> int:
        return max(PROCESS_BYTES, int(need.process))

    def _snapshots(self, demand: Demand) -> int:
        save, memory = self.config.save, self.machine.get("memory_bytes")
        size = self._trained(demand).snapshots // self.cut
        return 0 if save.snapshot_dir or save.flush_snapshots or (memory and size > memory / 4) else size

    def _trained(self, demand: Demand) -> TrainedBytes:
        return trained_bytes(self.config, demand.params.trainable, self.gpu is not None)

    def _settings(self, shape: Shape) -> Settings:
        course = Course(
            precision=shape.dtype, micro_batch_tokens=self.config.train.micro_batch_tokens or shape.tokens, checkpointed_layers=shape.again
        )
        settings = settings_of(self._held(shape), course, self.machine, usable_threads(), 1, 1)
        return settings.model_copy(update={"liger": False, "varlen": settings.varlen and self.fused_attention})

    def _halves_speed(self) -> float | None:
        """Return how many times faster 16-bit products are here, where the doctor measured it; else None."""
        probe = read(self.machine).probes.get("matmul")
        return probe.bf16_speed if probe else None

    @property
    def cut(self) -> int:
        """Ranks that have pieces of what is trained."""
        return ranks_of(self.config.train, self.machine) if self.config.cuts_trained else 1

    @property
    def _too_deep(self) -> bool:
        """Whether the model has too many layers for a trace of all of them; layers that a run names one by one are traced nevertheless."""
        return self.sweep.layers > _TRACED_WHOLE and _least(self.config.adapter, self.sweep.layers) < self.sweep.layers

    def ask(self, shape: Shape, curve: bool = False) -> Demand:
        """Trace the demand of a step; of a model of very many layers compute it by the closed form."""
        if shape.layers is None and self._too_deep:
            return self.sweep(shape)
        demand = self._traced(shape, curve)
        if shape.away:
            demand = kept_away(demand, self.sweep.layer(shape))
        if shape.cut > 1:
            demand = cut_between(demand, self.sweep.piece(shape), shape.cut)
        return with_branches(demand, shape.branches)

    def _traced(self, shape: Shape, curve: bool = False) -> Demand:
        """Trace a step whose frozen layers are all on the device; those of ranks that share them without what such a rank makes anew."""
        how = {"layers": shape.layers, "curve": curve, "plain_attention": not self.fused_attention, "cut": shape.cut > 1}
        demand = self.child.demand(self._held(shape), self.model, self._settings(shape), shape.lengths, shape.tokens, how)
        return in_pieces(demand, gathered_bytes(self.model), self.cut) if self.cut > 1 else demand

    def _held(self, shape: Shape) -> Config:
        """Return the config with weights held as a shape has them, by one rank or by several."""
        held: Json = {"weights": "bf16"} if shape.in_halves else {}
        held |= {"frozen": "nf4"} if shape.in_four_bits else {}
        held |= {"fsdp": True, "ranks": shape.cut} if shape.cut > 1 else {}
        return _with(self.config, **held)

    def _away(self, choice: Choice) -> int:
        """Return the bytes of layers in main memory: a copy for each rank."""
        if not choice.shape.away:
            return 0
        return int(choice.demand.layers * self.sweep.layer(choice.shape)) * ranks_of(self.config.train, self.machine)

    def _plan(self, choice: Choice, room: Room) -> Plan:
        shape, demand = choice.shape, choice.demand
        loading = demand.building > demand.peak + room.allocator(demand)
        snapshot = 0 if self.gpu else room.beside - self._process(demand)
        found = {"weights": demand.building} if loading else demand.bytes | {"allocator": room.allocator(demand)}
        kinds = Bytes(**{kind: int(size) for kind, size in found.items()}, context=room.beside - snapshot, snapshot=snapshot)
        own = self._trained(demand)
        budget = self.config.train.micro_batch_tokens or self._budget(shape)
        batch, save = self.config.train.effective_batch, self.config.save
        away = self._away(choice)
        ranks = ranks_of(self.config.train, self.machine)
        host = (
            kinds.total() if self.gpu is None else (1 + ranks) * PROCESS_BYTES + own.snapshots + own.away + away
        )  # the supervisor's is one
        at_once = shape.rows if parts_per_step(self.config.train, ranks) > 1 else max(1, budget // self.rows.longest)
        return Plan(
            fits=None if room.capacity is None else room.fits(demand),
            peak_bytes=kinds.total(),
            capacity_bytes=room.capacity,
            reserve_bytes=room.reserve if room.capacity is not None else None,
            bytes=kinds,
            params=demand.params,
            learns=learning(demand.learns, demand.weights_by_part, demand.reached_by_part),
            weights_by_part=demand.weights_by_part,
            micro_batch_tokens=budget,
            accumulation=max(1, -(-batch // at_once)),
            checkpointed_layers=shape.again,
            precision=shape.dtype,
            frozen=self._frozen(shape.dtype),
            host_bytes=host,
            disk_bytes=(save.keep + 2) * (own.weights + own.state) + own.weights,
            reasons=(
                *self._reasons(choice, loading),
                *([MAPPED] if room.tight(demand) else []),
                *about_layers_away(self.config, self.machine, away),
                *about_moments_away(self.config, self.machine, own.away),
            ),
        )

    def _budget(self, shape: Shape) -> int:
        """Return the tokens of a micro-batch: of what is wanted all that may be, for evaluations; parts of a step are smaller."""
        longest, lengths = self.rows.longest, {"max": self.rows.longest, "step": self.rows.step}
        whole = max(1, wanted_tokens(self.config, self.machine, lengths) // longest) * longest
        return whole if shape.rows == self.wanted().rows else shape.tokens

    def _frozen(self, dtype: Dtype) -> Frozen:
        """Return the form in which frozen weights are held."""
        asked = self.config.train.frozen
        return asked if asked != "auto" else "half" if dtype != "fp32" or self.model.stored in ("BF16", "F16") else "fp32"

    def _reasons(self, choice: Choice, loading: bool) -> list[str]:
        shape, demand = choice.shape, choice.demand
        rows = f"{shape.rows} rows of {shape.row} tokens" if shape.rows > 1 else f"one row of {shape.row} tokens"
        rows += f" and one of {shape.rest}" if shape.rest else ""
        how = "by the closed form, from traces of a few layers, because there are so many" if self._too_deep else "traced"
        longest = "as long as the longest one" if self._counted else "as long as a row may be"
        told = f"{how}: {rows} at once, {longest}, all of their tokens learned"
        reasons = [f"{told}; the most is needed in {_where(demand, loading)}"]
        if shape.again:
            asked = "as the config says" if self.config.train.checkpointed_layers is not None else "because keeping them all would not fit"
            reasons.append(f"{shape.again} of {demand.layers} layers are computed again in backward, {asked}")
        if self.cut > 1:
            reasons.append(
                f"of one of {self.cut} ranks, which hold pieces of weights, gradients and moments; a layer is whole while it computes"
            )
        reasons.append(self.why)
        if wide := widened_from(self.model.config):
            reasons.append(f"the weights come in {wide} and are widened to bf16 as they are loaded: {gib(2 * demand.params.total)}")
        if self.gpu:
            reasons.append("the context of a process on a card is an estimate; so are Liger's kernels, which are counted as torch's own")
        if shape.cut > 1:
            reasons.append(f"train.fsdp: this is one of {shape.cut} ranks: its piece of each frozen layer and two layers whole")
        reasons += exactness(self.config, self.machine)
        reasons.append(f"disk beside the run folder: {gib(2 * demand.params.total)} for a merged export in 16 bits, where one is made")
        cards = len(training_devices(self.machine))
        if cards > 1 and self.config.train.ranks == 1:
            reasons.append(f"{cards} cards are there; a run uses the first, and with train.ranks: auto all of its kind")
        return reasons


def about_longest(seen: int, planned: int) -> list[str]:
    """Return the plan that such rows want, where those looked at have at most half of the tokens that it is made for."""
    if not 0 < 2 * seen <= planned:
        return []
    text = f"planned for rows of {planned:,} tokens; the longest of the rows looked at has {seen:,}"
    return [f"{text}: if none is longer, train.max_tokens={max(seen, _SHORTEST)} plans for those, which need less"]


def _about(plan: Plan) -> str:
    if plan.fits is None:
        return "the device's memory is unknown, so nothing is said of whether it fits: give --memory or --card"
    found = "what is chosen fits" if plan.fits else "it does not fit"
    return f"{found}; the alternatives are by the closed form, from steps of a few layers"


def _where(demand: Demand, loading: bool) -> str:
    return "loading the weights" if loading else {"step": "the step's beginning"}.get(demand.phase, demand.phase)


def _least(adapter: Adapter, layers: int) -> int:
    """Return the fewest layers of a model that contain what a config names: all of them, where single ones may be named."""
    if isinstance(adapter.layers, int):
        return adapter.layers
    patterns = isinstance(adapter.layers, str) or (isinstance(adapter.targets, str) and adapter.targets != "all-linear")
    names = [name for named in (adapter.layers, adapter.targets) if isinstance(named, list) for name in named]
    return layers if patterns or any(part.isdigit() for name in names for part in name.split(".")) else 1


def _period(config: Json) -> int:
    """Return the number of layers after which their kinds repeat."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(set(kinds)) > 1:
        return next(size for size in range(1, len(kinds) + 1) if all(kind == kinds[at % size] for at, kind in enumerate(kinds)))
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:
        return pattern
    return 2 if config.get("model_type") == "gemma2" else 6 if config.get("model_type") == "gemma3_text" else 1
