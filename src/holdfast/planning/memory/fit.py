"""Which micro-batch and how many layers computed again fit a device, and what else would. Pure: what a step needs is asked of `ask`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from holdfast.config.settings import Dtype
from holdfast.machine.heap import is_tight
from holdfast.planning.memory.demand import Demand, between, cut_between, kept_away, moments_away, with_branches, with_some_again
from holdfast.run.plan import Alternative

_TRIES = 4


@dataclass(frozen=True)
class Shape:
    """A step to be asked about. row: tokens of its longest row; rows: such rows in a micro-batch; rest: tokens of a shorter one
    beside them, where a micro-batch is given; again: layers computed again in backward.

    layers: of the model cut down to so many; None: all of it. away: frozen layers are in main memory, two of them on the device;
    moments_away: so is what the optimizer keeps; in_halves: trained weights and their gradients have 16 bits, not 32; in_four_bits:
    frozen layers have 4. cut: ranks that hold a piece of each frozen layer; branches: sums of gradients that are held beside, where a
    step is cut into parts.
    """

    row: int
    rows: int
    dtype: Dtype
    again: int = 0
    layers: int | None = None
    away: bool = False
    moments_away: bool = False
    in_halves: bool = False
    in_four_bits: bool = False
    cut: int = 1
    branches: int = 0
    rest: int = 0

    @property
    def tokens(self) -> int:
        return self.row * self.rows + self.rest

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row of the micro-batch."""
        return [self.row] * self.rows + [self.rest] * bool(self.rest)


Ask = Callable[[Shape], Demand]


@dataclass(frozen=True)
class Room:
    """Bytes of a device: capacity (None: unknown), what is left to others, and what lies there beside a step."""

    capacity: int | None
    reserve: int
    beside: int
    heap: bool  # whether it is a heap's, whose gaps stay

    def tight(self, demand: Demand) -> bool:
        """Return whether a trainer gives back memory as it frees it, because a heap's gaps may not fit."""
        return self.heap and is_tight(demand.peak + self.beside, self.capacity)

    def allocator(self, demand: Demand) -> float:
        """Return the bytes an allocator holds beyond the step's blocks."""
        return demand.allocator(self.tight(demand))

    def peak(self, demand: Demand) -> int:
        """Return the peak in bytes over the whole run, from loading the weights on."""
        return int(max(demand.peak + self.allocator(demand), demand.building)) + self.beside

    def fits(self, demand: Demand) -> bool:
        """Return whether the demand fits; True where the capacity is unknown."""
        return self.capacity is None or self.peak(demand) <= self.capacity - self.reserve


@dataclass(frozen=True)
class Choice:
    """What was chosen and what it needs, traced as it will run."""

    shape: Shape
    demand: Demand


class Sweep:
    """What steps of a deep model need, by the closed form: from models of a few layers, which are traced.

    ask: traces a step with all of its layers on the device, laid out as those of one rank of several where the shape is cut.
    period: layers after which their kinds repeat; least: fewest layers that the run can be asked about; frozen: bytes of a layer's frozen
    matrices. Layers are alike, so bytes grow evenly with their number from there on.
    """

    def __init__(self, ask: Ask, layers: int, period: int = 1, least: int = 1, frozen: Callable[[Dtype], float] | None = None) -> None:
        self._ask, self.layers, self._period, self._frozen = ask, layers, period, frozen
        self._few = -(-least // period) * period
        self._known: dict[Shape, Demand] = {}

    def __call__(self, shape: Shape) -> Demand:
        """Return the demand of a shape, of the whole model."""
        if shape.moments_away:
            return moments_away(self(replace(shape, moments_away=False)))
        if shape.away:
            return kept_away(self(replace(shape, away=False)), self.layer(shape))
        if shape.branches:
            return with_branches(self(replace(shape, branches=0)), shape.branches)
        none = self._deep(replace(shape, again=0))
        whole = with_some_again(none, self._deep(replace(shape, again=self.layers)), shape.again) if shape.again else none
        return cut_between(whole, self.piece(shape), shape.cut) if shape.cut > 1 else whole

    def layer(self, shape: Shape) -> float:
        """Return the bytes of a layer's frozen weights: how much each further layer adds."""
        few, more = (self._period, 2 * self._period) if self.layers > 2 * self._period else (1, 2)
        one = Shape(shape.row, 1, shape.dtype)
        low, high = (self._asked(replace(one, layers=count)).bytes["weights"] for count in (few, more))
        return (high - low) / (more - few)

    def piece(self, shape: Shape) -> float:
        """Return the bytes of a layer that ranks shard: its frozen matrices, without the adapter's copies."""
        return self._frozen(shape.dtype) if self._frozen else self.layer(shape)

    def _deep(self, shape: Shape) -> Demand:
        few, more = self._few, self._few + self._period
        shape = replace(shape, cut=min(shape.cut, 2))  # a trace does not know how many ranks there are
        if self.layers <= more:
            return self._asked(shape)
        low, high = (self._asked(replace(shape, layers=count, again=count if shape.again else 0)) for count in (few, more))
        return between(low, high, (self.layers - few) / (more - few))

    def _asked(self, shape: Shape) -> Demand:
        if shape not in self._known:
            self._known[shape] = self._ask(shape)
        return self._known[shape]


def choose(ask: Ask, sweep: Sweep, room: Room, wanted: Shape, rows_fixed: bool, again_fixed: bool) -> Choice:
    """Choose the wanted step where it fits; else the fewest recomputed layers that let one row fit, then the most rows.

    Where nothing fits, the least there is. What is chosen is traced whole; where that needs more than the closed form said, less is taken.
    """
    if (rows_fixed and again_fixed) or room.fits(sweep(wanted)):
        demand = ask(wanted)
        if (rows_fixed and again_fixed) or room.fits(demand):
            return Choice(wanted, demand)
    least = replace(wanted, rows=wanted.rows if rows_fixed else 1)
    counts = [wanted.again] if again_fixed else range(sweep.layers + 1)
    again = next((count for count in counts if room.fits(sweep(replace(least, again=count)))), counts[-1])
    shape = replace(least, again=again)
    if not rows_fixed and wanted.rows > 1 and room.fits(sweep(shape)):
        shape = replace(shape, rows=_rows(sweep, room, shape, wanted.rows))
    for _ in range(_TRIES):
        demand = ask(shape)
        if room.fits(demand):
            break
        smaller = _smaller(shape, sweep.layers, rows_fixed, again_fixed)
        if smaller is None:
            break
        shape = smaller
    return Choice(shape, demand)


def _rows(sweep: Sweep, room: Room, one: Shape, wanted: int) -> int:
    """Return the most rows that fit in one micro-batch: bytes grow linearly with them."""
    low, high = sweep(one), sweep(replace(one, rows=wanted))
    return max(count for count in range(1, wanted + 1) if count == 1 or room.fits(between(low, high, (count - 1) / (wanted - 1))))


def _smaller(shape: Shape, layers: int, rows_fixed: bool, again_fixed: bool) -> Shape | None:
    if shape.rows > 1 and not rows_fixed:
        return replace(shape, rows=shape.rows - max(1, shape.rows // 8))
    if shape.again < layers and not again_fixed:
        return replace(shape, again=min(layers, shape.again + max(1, layers // 8)))
    return None


LAYERS_AWAY, MOMENTS_AWAY, IN_HALVES = "train.offload=layers", "train.offload=optimizer", "train.weights=bf16"
IN_FOUR_BITS = "train.frozen=nf4"
_LIGHTER: dict[str, Callable[[Shape], Shape]] = {  # by train's own keys; what they cost in time is not known here
    LAYERS_AWAY: lambda one: replace(one, away=True),
    MOMENTS_AWAY: lambda one: replace(one, moments_away=True),
    IN_HALVES: lambda one: replace(one, in_halves=True),
    IN_FOUR_BITS: lambda one: replace(one, in_four_bits=True),
}
CARDS = (2, 4, 8)  # that are offered together where one does not do


def on_several(sweep: Sweep, room: Room, chosen: Choice, branches: int) -> Alternative:
    """Return the fewest cards like this one that fit the run with its frozen layers sharded; the most cards where none do."""
    for cards in CARDS:
        shape = replace(chosen.shape, cut=cards, branches=branches)
        change = (f"train.ranks={cards} train.fsdp=true", lambda _one, made=shape: made)
        told = _told(sweep, room, chosen.shape, chosen.demand, [change], None)
        if told.fits:
            break
    return told


def alternatives(sweep: Sweep, room: Room, chosen: Choice, halves_speed: float | None, lighter: Sequence[str] = ()) -> list[Alternative]:
    """List other ways to run it that need less, or fit and may be faster; where the chosen one does not fit, also pairs, until one does.

    halves_speed: how many times faster 16 bits are here; None is unknown. lighter: which of LAYERS_AWAY, MOMENTS_AWAY,
    IN_HALVES and IN_FOUR_BITS the run may go over to.
    """
    single = list(_changes(chosen.shape, sweep.layers))
    if not room.fits(chosen.demand):
        single += [(name, _LIGHTER[name]) for name in lighter]
    asked = [_told(sweep, room, chosen.shape, chosen.demand, [change], halves_speed) for change in single]
    needed = room.peak(chosen.demand)
    told = [one for one in asked if one.peak_bytes < needed or (one.fits is not False and (one.slower or 0) < 1)]
    if room.fits(chosen.demand) or any(one.fits for one in told):
        return told
    single = [change for change in single if not change[0].endswith(("layers=0", "=fp32", "=off"))]  # those that save
    if len(single) < 2:
        return told
    together = _told(sweep, room, chosen.shape, chosen.demand, single, halves_speed)
    if together.fits or together.peak_bytes > min(one.peak_bytes for one in asked):  # else no two of them can
        for pair in itertools.combinations(single, 2):
            both = _told(sweep, room, chosen.shape, chosen.demand, list(pair), halves_speed)
            if both.fits:
                return [*told, both]
    return [*told, together]


_Change = tuple[str, Callable[[Shape], Shape]]


def _changes(shape: Shape, layers: int) -> Iterator[_Change]:
    if shape.again < layers:
        yield f"train.checkpointed_layers={layers}", lambda one: replace(one, again=layers)
    if shape.again:
        yield "train.checkpointed_layers=0", lambda one: replace(one, again=0)
    if shape.rows > 1 or shape.rest:
        yield f"train.micro_batch_tokens={shape.row}", lambda one: replace(one, rows=1, rest=0)
    if shape.dtype == "fp32":
        yield "train.precision=bf16", lambda one: replace(one, dtype="bf16")
    else:
        yield "train.precision=fp32", lambda one: replace(one, dtype="fp32")
    if shape.away:
        yield "train.offload=off", lambda one: replace(one, away=False)
    if shape.row >= 16:
        yield f"train.max_tokens={shape.row // 2}", lambda one: replace(one, row=one.row // 2, rest=one.rest // 2)


def _told(sweep: Sweep, room: Room, before: Shape, base: Demand, changes: list[_Change], halves_speed: float | None) -> Alternative:
    shape = before
    for _, change in changes:
        shape = change(shape)
    demand = sweep(shape)
    slower: float | None = None
    held = [(one.away, one.moments_away, one.in_halves, one.in_four_bits, one.cut) for one in (shape, before)]
    if shape.tokens == before.tokens and held[0] == held[1]:  # how fast the bus is nobody knows
        slower = demand.flops / base.flops
        if shape.dtype != before.dtype:
            faster = halves_speed if shape.dtype != "fp32" else 1 / halves_speed if halves_speed else None
            slower = slower / faster if faster else None
    fits = None if room.capacity is None else room.fits(demand)
    words = " ".join(name for name, _ in changes)
    return Alternative(change=words, peak_bytes=room.peak(demand), slower=None if slower is None else round(slower, 2), fits=fits)
