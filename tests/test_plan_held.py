"""`holdfast plan` of full fine-tunes: bytes where trained weights have 16 bits and moments lie in main memory, and when that is offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.book.graphics_cards import named_card
from holdfast.core.config.config import Config
from holdfast.core.run.plan import Params
from holdfast.core.types import STRETCH
from holdfast.mind.demand import Demand, moments_away
from holdfast.mind.fit import IN_HALVES, MOMENTS_AWAY, Choice, Room, Shape, Sweep, alternatives
from holdfast.mind.memory import trained_bytes
from holdfast.supervisor.planning import plan_run, with_card
from test_plan import LLAMA

COUNT = 10 * STRETCH
SCALAR = 512  # bytes a single number takes on a card; a step has a few: the count of updates, a norm, a factor
FULL = {"model": "m", "data": {"files": "x"}, "adapter": {"type": "full"}}
WAYS: list[tuple[dict[str, Any], tuple[int, int, int]]] = [  # bytes a weight: itself and its gradient, state on the card, in main memory
    ({}, (8, 8, 0)),
    ({"offload": "optimizer"}, (8, 0, 8)),
    ({"weights": "bf16"}, (4, 8, 0)),
    ({"weights": "bf16", "offload": "optimizer"}, (4, 0, 8)),
    ({"offload": "optimizer", "optimizer": "lion"}, (8, 0, 4)),
]


@pytest.mark.parametrize(("train", "a_weight"), WAYS)
def test_bytes_a_weight_are_those_of_the_documents(train: dict[str, Any], a_weight: tuple[int, int, int]) -> None:
    found = trained_bytes(Config.model_validate(FULL | {"train": train}), COUNT, on_card=True)
    assert (found.weights + found.gradients, found.state - found.away, found.away) == tuple(COUNT * size for size in a_weight)
    assert found.beside <= 58 * STRETCH, "what an update needs beside them does not grow with the model"
    assert trained_bytes(Config.model_validate(FULL | {"train": train}), COUNT, on_card=False).away == 0


def demand(shape: Shape) -> Demand:
    width = 2 if shape.in_halves else 4
    kinds = {"adapter": width, "gradients": width, "optimizer": 8}
    sizes = {kind: float(COUNT * kinds.get(kind, 0)) for kind in ("weights", "activations", "logits", "workspace", *kinds)}
    total = sum(sizes.values())
    params = Params(total=COUNT, trainable=COUNT)
    return Demand(bytes=sizes, phase="forward", building=total, held=total + 3, params=params, layers=1, flops=1)


@pytest.mark.parametrize(
    ("a_weight", "fitting"),
    [(16, []), (15, [MOMENTS_AWAY, IN_HALVES]), (11, [MOMENTS_AWAY]), (9, [f"{MOMENTS_AWAY} {IN_HALVES}"]), (3, [])],
)
def test_lighter_ways_are_offered_where_a_run_does_not_fit_alone_or_together(a_weight: int, fitting: list[str]) -> None:
    sweep, room, wanted = Sweep(demand, 1), Room(COUNT * a_weight + 3, 0, 0, loads_here=False), Shape(8, 1, "bf16")
    others = alternatives(sweep, room, Choice(wanted, demand(wanted)), None, [MOMENTS_AWAY, IN_HALVES])
    named = [one for one in others if MOMENTS_AWAY in one.change or IN_HALVES in one.change]
    assert [one.change for one in named if one.fits] == fitting and all(one.slower is None for one in named)


def test_moments_leave_but_the_stretches_that_are_under_way() -> None:
    whole = demand(Shape(8, 1, "bf16"))
    away = moments_away(whole)
    assert whole.peak - away.peak == 8 * COUNT - 3 * 8 * STRETCH and away.allocator == whole.allocator == 3


@pytest.mark.long
def test_the_closed_form_is_what_a_trace_finds(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2}))
    machine = with_card({"memory_bytes": 64 << 30}, named_card("RTX 3090"))
    for train, _ in WAYS:
        config = Config.model_validate(FULL | {"model": str(tmp_path), "train": train | {"max_tokens": 64}})
        plan = plan_run(config, machine).plan
        told = trained_bytes(config, plan.params.trainable, on_card=True)
        found = (plan.bytes.adapter, plan.bytes.gradients, plan.bytes.optimizer)
        assert found == pytest.approx((told.weights, told.gradients, told.state - told.away), abs=4 * SCALAR), train
        assert (plan.host_bytes or 0) >= told.away + told.snapshots
