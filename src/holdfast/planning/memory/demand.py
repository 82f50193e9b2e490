"""What a traced step was found to need, and the closed form for steps in between: bytes grow evenly with layers and tokens. Pure."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.planning.memory.arithmetic import GATHERED_BESIDE, KINDS_IN_PIECES, visiting_bytes
from holdfast.run.plan import Params

FIXED = ("weights", "adapter", "gradients", "optimizer")
ON_CARD = 2  # layers of a model whose layers are kept in main memory
_KINDS = (*FIXED, "activations", "logits", "workspace")


class Demand(BaseModel, frozen=True, extra="ignore"):
    """Bytes at the peak of a step by kind; phase: what the step does then; places: bytes by kind at the most of each
    phase and module, layers told apart by nothing; building: the most while the model is made.

    held: by the allocator, at the most; mapped: the same in main memory where large blocks are mappings of their own; layers: of the
    model; flops: of matrix products in a step; process: interpreter and libraries, as they were in the process that traced it; largest:
    [bytes, kind, operation and module] of the largest blocks at the peak; curve: bytes by kind over the step, where asked.
    """

    bytes: dict[str, float]
    phase: str
    places: dict[str, dict[str, float]] = {}
    building: float
    held: float
    mapped: float | None = None
    params: Params
    learns: dict[str, int] = {}
    weights_by_part: dict[str, int] = {}
    reached_by_part: dict[str, int] = {}
    layers: int
    flops: float
    process: float = 0.0
    largest: list[tuple[int, str, str]] = []
    curve: dict[str, Any] | None = None

    @property
    def peak(self) -> float:
        return sum(self.bytes.values())

    def allocator(self, tight: bool = False) -> float:
        """Return the bytes the allocator holds beyond the peak of blocks. tight: large blocks are mappings of their own."""
        held = self.mapped if tight and self.mapped is not None else self.held
        return max(0.0, held - self.peak)


def between(low: Demand, high: Demand, share: float) -> Demand:
    """Return the demand `share` of the way from `low` to `high`, or beyond: what grows linearly between them is extrapolated.

    Each phase and module grows at its own rate, so another one can have the peak.
    """

    def at(a: float, b: float) -> float:
        return a + share * (b - a)

    def grown(a: dict[str, float], b: dict[str, float]) -> dict[str, float]:
        return {kind: max(0.0, at(a[kind], b[kind])) for kind in _KINDS}

    def parts(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
        return {name: max(0, round(at(a.get(name, 0), size))) for name, size in b.items()}

    both = [name for name in high.places if name in low.places]
    places = {name: grown(low.places[name], high.places[name]) for name in both} or {high.phase: grown(low.bytes, high.bytes)}
    where = max(places, key=lambda name: sum(places[name].values()))
    peak = sum(places[where].values())
    mapped = None if low.mapped is None or high.mapped is None else peak + max(0.0, at(low.mapped - low.peak, high.mapped - high.peak))
    return Demand(
        bytes=places[where],
        phase=where.partition(" ")[0],
        places=places if both else {},
        building=max(0.0, at(low.building, high.building)),
        held=peak + max(0.0, at(low.held - low.peak, high.held - high.peak)),
        mapped=mapped,
        params=Params(
            total=max(0, round(at(low.params.total, high.params.total))),
            trainable=max(0, round(at(low.params.trainable, high.params.trainable))),
        ),
        learns=parts(low.learns, high.learns),
        weights_by_part=parts(low.weights_by_part, high.weights_by_part),
        reached_by_part=parts(low.reached_by_part, high.reached_by_part),
        layers=max(0, round(at(low.layers, high.layers))),
        flops=at(low.flops, high.flops),
        process=high.process,
    )


def kept_away(whole: Demand, layer: float) -> Demand:
    """Return the demand of a step whose frozen layers, of `layer` bytes each, are in main memory but the one that computes and the next."""
    return _without(whole, whole.layers * layer - min(ON_CARD, whole.layers) * layer)


def cut_between(whole: Demand, layer: float, ranks: int) -> Demand:
    """Return the demand of one of `ranks` that shard each frozen layer, of `layer` bytes: beside its shards two whole layers."""
    layers = whole.layers * layer
    return _without(whole, max(0.0, layers - layers / ranks - min(ON_CARD, whole.layers) * layer))


def _without(whole: Demand, gone: float) -> Demand:
    made = _with_more(whole, "weights", -gone)
    return made.model_copy(update={"building": max(0.0, whole.building - gone)})


def with_branches(whole: Demand, branches: int) -> Demand:
    """Return the demand of a step cut into parts, which holds `branches` sums of gradients beside the one that is added to."""
    return _with_more(whole, "gradients", branches * whole.bytes["gradients"]) if branches else whole


def _with_more(whole: Demand, kind: str, more: float) -> Demand:
    """Return the demand with `more` bytes of a kind held throughout the step, in its curve as well."""
    told = whole.bytes | {kind: max(0.0, whole.bytes[kind] + more)}
    curve = whole.curve
    if curve:
        at = curve["kinds"].index(kind)
        moments = [[max(0, int(size + more)) if place == at else size for place, size in enumerate(row)] for row in curve["bytes"]]
        curve = curve | {"bytes": moments}
    return whole.model_copy(update={"bytes": told, "places": {}, "curve": curve} | _held(whole, more))


def _held(whole: Demand, more: float) -> dict[str, float]:
    """Return the bytes, held and mapped, that an allocator keeps of a step that holds `more` bytes throughout."""
    known = {"held": whole.held} | ({} if whole.mapped is None else {"mapped": whole.mapped})
    return {name: max(0.0, size + more) for name, size in known.items()}


def in_pieces(whole: Demand, gathered: float, ranks: int) -> Demand:
    """Return the demand of one of `ranks` that shard weights, gradients and moments, with `gathered` bytes of weights whole at a time."""
    own = {kind: whole.bytes[kind] / ranks for kind in KINDS_IN_PIECES}
    more = {"weights": whole.bytes["weights"] + gathered, "workspace": whole.bytes["workspace"] + GATHERED_BESIDE * gathered}
    told = whole.bytes | own | more
    gone = whole.peak - sum(told.values())
    building = own["adapter"] + own["gradients"] + own["optimizer"] + gathered
    return whole.model_copy(update={"bytes": told, "places": {}, "building": building} | _held(whole, -gone))


def moments_away(whole: Demand) -> Demand:
    """Return the demand of a step whose optimizer keeps its state in main memory, except the stretch being updated."""
    gone = whole.bytes["optimizer"]
    beside = visiting_bytes(whole.params.trainable, gone)
    told = whole.bytes | {"optimizer": 0.0, "workspace": whole.bytes["workspace"] + beside}
    building = max(0.0, whole.building - gone + beside)
    return whole.model_copy(update={"bytes": told, "places": {}, "building": building} | _held(whole, beside - gone))


def with_some_again(none: Demand, every: Demand, again: int) -> Demand:
    """Estimate a step that recomputes `again` layers, from one that recomputes none and one that recomputes every layer.

    Each layer more takes as much from the peak at backward's begin, and adds its input to the peak of backward, where a layer is computed
    again. The higher of the two lies on or below the straight line between its ends, so this says too much at times, and never too little.
    """
    return between(none, every, again / max(1, every.layers)) if again else none
