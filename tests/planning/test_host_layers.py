"""Frozen layers kept in main memory: what they do not go with, and what a machine without a card makes of the key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.book.checks import memory_plan
from holdfast.book.kinds.check import Case
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.machine.machine_file import read
from holdfast.planning.memory.demand import Demand, kept_away
from holdfast.planning.memory.fit import LAYERS_AWAY, Choice, Room, Shape, Sweep, alternatives
from holdfast.planning.plan import PROCESS_BYTES, make_plan
from holdfast.planning.planning import with_card
from holdfast.planning.standby import standby_mode
from holdfast.run.plan import Bytes, Params
from holdfast.trainer.common.decoder import decoder_layers
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen import offloaded_layers as streamed
from support.plans import MODEL

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"adapter": {"type": "full"}}, "adapter.type full trains all of them; take an adapter, or adapter.type layers"),
    ({"train": {"fsdp": True, "ranks": 2}}, "train.fsdp cuts them between ranks; leave one of them out"),
]


@pytest.mark.parametrize(("tree", "sentence"), REFUSED, ids=[sentence for _, sentence in REFUSED])
def test_what_has_no_layers_to_keep_away_is_refused_with_a_sentence(
    config_of: Callable[..., Path], tree: dict[str, Any], sentence: str
) -> None:
    train = {"offload": "layers"} | tree.get("train", {})
    with pytest.raises(Stop) as stop:
        load_config(config_of(**(tree | {"train": train})), [])
    assert stop.value.code == 2 and sentence in str(stop.value)


@pytest.mark.parametrize(("offload", "device", "away"), [("layers", "cuda", True), ("layers", "cpu", False), (False, "cuda", False)])
def test_layers_are_kept_away_from_a_card_alone(offload: Any, device: str, away: bool) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"offload": offload}})
    assert streamed.streams(config, torch.device(device)) is away


def test_an_architecture_without_marked_layers_is_refused() -> None:
    base = SimpleNamespace(modules=lambda: [torch.nn.Linear(2, 2)], base_model_prefix="model", model=None)
    with pytest.raises(Refusal, match=r"train.offload: layers is about decoder layers, and SimpleNamespace has none"):
        decoder_layers(base, "train.offload: layers")


def test_main_memory_that_is_too_small_is_told_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "host_memory", lambda: {"MemTotal": 1 << 20, "MemAvailable": 1 << 19})
    config = transformers.LlamaConfig(vocab_size=64, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2)
    base = transformers.LlamaForCausalLM(config).requires_grad_(False)
    with pytest.raises(Refusal, match=r"keeps 3 MiB in main memory, which has 0 of 1 MiB left"):
        streamed.OffloadedLayers(base, base, torch.device("cpu"))


def demand(shape: Shape) -> Demand:
    """Of a model of 10 layers of 7 bytes beside 100, and a byte for each token of each layer."""
    layers = shape.layers or 10
    kinds = dict.fromkeys(("adapter", "gradients", "optimizer", "logits", "workspace"), 0.0)
    found = {"weights": 100.0 + 7 * layers, "activations": float(shape.tokens * layers)}
    total = sum(found.values())
    params = Params(total=100, trainable=1)
    return Demand(bytes=kinds | found, phase="backward", building=total, held=total + 3, params=params, layers=layers, flops=1.0)


def test_a_sweep_keeps_two_layers_of_those_that_are_away() -> None:
    sweep, shape = Sweep(demand, 10), Shape(4, 1, "bf16")
    whole, away = sweep(shape), sweep(replace(shape, away=True))
    assert (whole.bytes["weights"], away.bytes["weights"]) == (170, 114)
    assert whole.peak - away.peak == 56 and away.allocator() == whole.allocator() == 3
    assert away.layers * sweep.layer(shape) == 70


@pytest.mark.parametrize("layers", [1, 2])
def test_a_model_of_two_layers_gains_nothing(layers: int) -> None:
    assert kept_away(demand(Shape(4, 1, "bf16", layers=layers)), 7.0).bytes["weights"] == 100 + 7 * layers


@pytest.mark.parametrize(("capacity", "offered"), [(160, [True]), (90, [False]), (1000, [])], ids=["it helps", "not enough", "all fits"])
def test_it_is_offered_where_nothing_fits_at_a_price_that_nobody_knows(capacity: int, offered: list[bool]) -> None:
    sweep, room = Sweep(demand, 10), Room(capacity, 0, 0, heap=False)
    wanted = Shape(4, 1, "bf16")
    others = alternatives(sweep, room, Choice(wanted, demand(wanted)), None, [LAYERS_AWAY])
    found = [one for one in others if one.change == "train.offload=layers"]
    assert [one.fits for one in found] == offered and all(one.slower is None for one in found)


def test_the_closed_form_counts_two_layers_and_what_main_memory_holds() -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"precision": "fp32", "offload": "layers"}})
    model = MODEL.__class__(MODEL.folder, MODEL.config | {"num_hidden_layers": 32}, MODEL.shapes, 0)
    lengths = {"max": 10, "mean": 10, "rows": 10, "step": 100}
    card = {"vendor": "nvidia", "arch": "sm_90", "name": "a card", "memory_bytes": 8 << 30, "integrated": False}
    machine = with_card({"memory_bytes": 1 << 30}, card)
    layers, rest = 4 * (64 * 64 + 64 * 128), 4 * (64000 + 64)
    plan = make_plan(config, model, machine, lengths)
    assert plan.bytes.weights == pytest.approx(rest + 2 * layers / 32, abs=4)
    assert plan.host_bytes == layers + 2 * PROCESS_BYTES
    said = " ".join(plan.reasons)
    assert "two of them on the card" in said and "this machine has 1.00 GiB of main memory" in said
    assert standby_mode(config, plan, {"gpus": [card], "memory_bytes": 64 << 30}) == "imports"
    assert standby_mode(config, plan, {"gpus": [card], "memory_bytes": 2 * PROCESS_BYTES}) == "off"
    plain = make_plan(config, model, {"memory_bytes": 64 << 30}, lengths)
    assert "does nothing here" in " ".join(plain.reasons) and plain.bytes.weights == rest + layers and plain.host_bytes is None


@pytest.mark.parametrize(
    ("weights", "gpus", "helps"),
    [
        (1, [1], "lower train.max_tokens"),
        (7, [1], "train.offload=layers keeps them in main memory"),
        (7, [], "train.frozen=nf4 holds them in 4"),
    ],
)
def test_a_run_that_does_not_fit_is_told_what_takes_weights_off_the_card(weights: int, gpus: list[int], helps: str) -> None:
    plan = make_plan(Config.model_validate({"model": "m", "data": {"files": "f"}}), MODEL, {}, {"max": 1, "mean": 1, "rows": 1, "step": 1})
    full = {"fits": False, "peak_bytes": 9 << 30, "capacity_bytes": 8 << 30, "bytes": Bytes(weights=weights << 30)}
    case = Case(SimpleNamespace(gpus=gpus, torch=None), plan=plan.model_copy(update=full))  # type: ignore[arg-type]
    (found,) = memory_plan.look(case)
    assert helps in (found.fix or "") and ("offload" in (found.fix or "")) == (weights == 7 and bool(gpus))


@pytest.mark.parametrize(
    ("version", "change", "changes", "helps", "not_told"),
    [
        (
            "2.9.1+cpu",
            {"bytes": Bytes(weights=7 << 30)},
            {},
            "train.frozen=nf4",
            "offload",
        ),  # the card is idle: its layers are there already
        ("2.9.1+cu128", {"bytes": Bytes(weights=7 << 30)}, {}, "train.offload=layers", "precision"),
        ("2.9.1+cu128", {"bytes": Bytes(weights=7 << 30)}, {"train": {"frozen": "nf4"}}, "lower train.max_tokens", "nf4"),
        ("2.9.1+cu128", {"bytes": Bytes(weights=1 << 30), "precision": "bf16"}, {}, "lower train.max_tokens", "precision"),
        ("2.9.1+cu128", {"bytes": Bytes(weights=1 << 30), "precision": "fp32"}, {}, "train.precision=bf16", "nf4"),
        (
            "2.9.1+cu128",
            {"bytes": Bytes(adapter=2 << 30, gradients=2 << 30, optimizer=4 << 30)},
            {"adapter": {"type": "full"}},
            "takes 8.0 GiB",
            "max_tokens",
        ),
    ],
)
def test_nothing_is_advised_that_the_run_does_already(version: str, change: Json, changes: Json, helps: str, not_told: str) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}} | changes)
    plan = make_plan(Config.model_validate({"model": "m", "data": {"files": "f"}}), MODEL, {}, {"max": 1, "mean": 1, "rows": 1, "step": 1})
    full = {"fits": False, "peak_bytes": 9 << 30, "capacity_bytes": 8 << 30} | change
    machine = read({"torch": {"version": version}, "gpus": [{"vendor": "nvidia", "arch": "sm_80", "memory_bytes": 8 << 30}]})
    (found,) = memory_plan.look(Case(machine, config, plan.model_copy(update=full)))
    assert helps in found.fix and not_told not in found.fix
