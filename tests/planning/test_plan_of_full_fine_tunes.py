"""`holdfast plan` of full fine-tunes: bytes where trained weights have 16 bits and moments lie in main memory, and when that is offered."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from holdfast.base_model.folder import EMBEDDED, ModelFacts, read_model
from holdfast.book.graphics_cards import named_card
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.memory.arithmetic import trained_bytes
from holdfast.planning.memory.demand import Demand, cut_between, moments_away, with_branches
from holdfast.planning.memory.fit import IN_HALVES, MOMENTS_AWAY, Choice, Room, Shape, Sweep, alternatives, on_several
from holdfast.planning.memory.trained_size import trainable_parameters, weights_by_part
from holdfast.planning.plan import CARD_CONTEXT, make_plan
from holdfast.planning.planning import Planner, RowLengths, plan_run, with_card
from holdfast.run.plan import Params
from holdfast.run.types import STRETCH
from support.plans import LLAMA

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


@pytest.mark.parametrize("changed", [False, True], ids=["a copy", "its own"])
def test_an_output_layer_that_is_the_embedding_once_more_is_counted_once(changed: bool, tmp_path: Path) -> None:
    """As in the files of Qwen3 0.6B. With other values transformers takes it for a layer, whatever config.json says."""
    shutil.copytree(EMBEDDED["tiny"], tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] + int(changed)}, file, metadata={"format": "pt"})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    weights = sum(one.numel() for one in loaded.parameters())
    model = read_model(str(tmp_path / "model"))
    assert model.parameters() == trainable_parameters(Config.model_validate(FULL), model) == sum(weights_by_part(model).values()) == weights


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
    sweep, room, wanted = Sweep(demand, 1), Room(COUNT * a_weight + 3, 0, 0, heap=False), Shape(8, 1, "bf16")
    others = alternatives(sweep, room, Choice(wanted, demand(wanted)), None, [MOMENTS_AWAY, IN_HALVES])
    named = [one for one in others if MOMENTS_AWAY in one.change or IN_HALVES in one.change]
    assert [one.change for one in named if one.fits] == fitting and all(one.slower is None for one in named)


def test_moments_leave_but_the_stretches_that_are_under_way() -> None:
    whole = demand(Shape(8, 1, "bf16"))
    away = moments_away(whole)
    assert whole.peak - away.peak == 8 * COUNT - 3 * 8 * STRETCH and away.allocator() == whole.allocator() == 3


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


# -- frozen layers cut between ranks, with a stand-in for the tracing: ten layers of 100 bytes, 40 beside them, gradients of 8


def pieces(shape: Shape) -> Demand:
    layers = shape.layers or 10
    kinds = dict.fromkeys(("adapter", "optimizer", "activations", "logits", "workspace"), 0.0)
    sizes = kinds | {"weights": 100.0 * layers + 40, "gradients": 8.0}
    curve = {"kinds": ["weights", "gradients"], "bytes": [[1040, 8], [1040, 0]], "moments": [0, 1], "marks": []}
    params = Params(total=1, trainable=1)
    return Demand(bytes=sizes, phase="forward", building=1040, held=1050, params=params, layers=layers, flops=1, curve=curve)


@pytest.mark.parametrize(("cards", "weights"), [(2, 40 + 500 + 200), (4, 40 + 250 + 200), (8, 40 + 125 + 200)])
def test_a_rank_holds_its_pieces_two_layers_and_the_sums_of_finished_branches(cards: int, weights: int) -> None:
    cut = with_branches(cut_between(pieces(Shape(8, 1, "bf16")), 100, cards), 3)
    assert (cut.bytes["weights"], cut.bytes["gradients"], cut.building) == (weights, 32, weights)
    assert cut.allocator() == pieces(Shape(8, 1, "bf16")).allocator(), "gaps stay"
    assert cut.curve and cut.curve["bytes"] == [[weights, 32], [weights, 24]], "the picture shows what the table says"
    sweep = Sweep(pieces, 10)
    assert sweep(Shape(8, 1, "bf16", cut=cards, branches=3)).bytes == cut.bytes, "the closed form, too"


@pytest.mark.parametrize(("room", "change", "fits"), [(800, "ranks=2", True), (540, "ranks=4", True), (300, "ranks=8", False)])
def test_the_fewest_cards_between_which_it_fits_are_offered(room: int, change: str, fits: bool) -> None:
    sweep, wanted = Sweep(pieces, 10), Shape(8, 1, "bf16")
    told = on_several(sweep, Room(room, 0, 0, heap=False), Choice(wanted, pieces(wanted)), 3)
    assert (told.change, told.fits, told.slower) == (f"train.{change} train.fsdp=true", fits, None)


@pytest.mark.long
def test_a_plan_of_several_ranks_says_the_same_everywhere(tmp_path: Path) -> None:
    model = LLAMA | {"num_hidden_layers": 8, "hidden_size": 256, "intermediate_size": 640}
    (tmp_path / "config.json").write_text(json.dumps(model))
    machine = with_card({"memory_bytes": 64 << 30}, named_card("RTX 3090"))
    tree = {"model": str(tmp_path), "data": {"files": "x"}, "adapter": {"r": 4, "alpha": 8}}
    train = {"max_tokens": 64, "effective_batch": 2, "precision": "bf16", "micro_batch_tokens": 128, "checkpointed_layers": 0}
    whole = plan_run(Config.model_validate(tree | {"train": train}), machine)
    cut = plan_run(Config.model_validate(tree | {"train": train | {"ranks": 4, "fsdp": True}}), machine, curve=True)
    layer = 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 640 * 256 + 2 * 256)
    rest = 2 * (2 * 512 * 256 + 256)
    assert cut.plan.bytes.weights == pytest.approx(rest + 8 * layer / 4 + 2 * layer, rel=0.02), "no copies of the adapter stay"
    assert cut.plan.bytes.workspace > whole.plan.bytes.workspace + 2 * 640 * 256, "gate and up lie there again, with the adapter"
    assert cut.plan.bytes.gradients == 4 * whole.plan.bytes.gradients, "three sums of branches beside the block"
    assert any("one of 4 ranks" in reason for reason in cut.plan.reasons)
    curve = cut.demand.curve or {}
    totals = [sum(row) for row in curve["bytes"]]
    assert max(totals) == pytest.approx(cut.demand.peak, rel=0.01), "--why draws what --json says"
    facts = replace(cut.model, stored="BF16")
    lengths = {"max": 64, "mean": 64, "rows": 0, "step": 128}
    closed = make_plan(Config.model_validate(tree | {"train": train | {"ranks": 4, "fsdp": True}}), facts, machine, lengths)
    assert closed.bytes.weights == pytest.approx(cut.plan.bytes.weights, rel=0.02)
    assert closed.bytes.workspace >= 2 * (2 * 640 * 256)
    assert closed.bytes.gradients == pytest.approx(cut.plan.bytes.gradients, abs=4 * SCALAR)
    small = plan_run(Config.model_validate(tree | {"train": train}), machine, limit=(whole.plan.peak_bytes - layer) * 4 // 3).plan
    other = small.alternatives[-1]
    assert not small.fits and other.change.endswith("train.fsdp=true") and other.fits, other


class Copies:
    """In place of the child that traces: a whole layer keeps a copy of its matrices with the adapter in it, half as large."""

    def __init__(self) -> None:
        self.fused: set[bool] = set()

    def demand(
        self, config: Config, _model: ModelFacts, settings: Settings, _lengths: list[int], _labels: int, how: dict[str, Any]
    ) -> Demand:
        found = pieces(Shape(8, 1, "bf16", layers=how["layers"]))
        assert how["cut"] == config.train.fsdp
        if how["cut"]:
            self.fused.add(settings.fused)
            return found
        return found.model_copy(update={"bytes": found.bytes | {"weights": 150.0 * found.layers + 40}})


def test_cards_that_are_offered_are_planned_as_those_that_are_asked_for() -> None:
    shapes = {f"model.layers.{at}.mlp.up_proj.weight": (10, 5) for at in range(10)}
    config = {"num_hidden_layers": 10, "hidden_size": 5, "intermediate_size": 10, "vocab_size": 4, "num_attention_heads": 1}
    model = ModelFacts(Path("m"), config, shapes, 0, "BF16")
    machine = with_card({"memory_bytes": 64 << 30}, named_card("RTX 3090"))
    tree = {"model": "m", "data": {"files": "x"}, "adapter": {"r": 4}}
    train = {"max_tokens": 8, "effective_batch": 2, "precision": "bf16", "micro_batch_tokens": 8, "checkpointed_layers": 0}
    plans, child = [], Copies()
    for more in ({}, {"ranks": 8, "fsdp": True}):
        asked = Planner(Config.model_validate(tree | {"train": train | more}), machine, model, child, RowLengths(8, 16))  # type: ignore[arg-type]
        plans.append(asked.plan(CARD_CONTEXT, curve=False).plan)
    (offered,) = (one for one in plans[0].alternatives if one.change == "train.ranks=8 train.fsdp=true")
    assert offered.peak_bytes == plans[1].peak_bytes
    assert plans[1].bytes.weights == 40 + 1000 / 8 + 200 and child.fused == {False}, "no copies stay, and no kernels read pieces"
