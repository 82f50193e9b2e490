"""Every optimizer: its whole state is in the snapshot, an update is the one of a plain reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.config.config import Config
from holdfast.config.train import Train
from holdfast.trainer.model.trained.pieces import Pieces, Unit
from holdfast.trainer.optim.choose import optimizer_of
from holdfast.trainer.optim.optimizer import FlatOptimizer
from holdfast.trainer.protocol.step_hooks import StepHooks
from holdfast.trainer.step.step import Gradients, update
from support.rounding import assert_equal_but_for_rounding, but_for_rounding, distance
from support.stand import Stand, model_folder

OPERATIONS = 64  # on an element in a few steps

KINDS: dict[str, float] = {
    "adamw": 1e-2,
    "adamw8bit": 1e-2,
    "paged": 1e-2,
    "schedule_free": 1e-2,
    "adafactor": 0.3,
    "lion": 3e-3,
    "muon": 3e-2,
    "sgd": 0.3,
}


def needs(kind: str) -> None:
    if kind in ("adamw8bit", "paged"):
        pytest.importorskip("bitsandbytes")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", ["lora", "full"])
def test_a_state_holds_all_that_later_steps_need(model: Path, kind: str, adapter: str) -> None:
    needs(kind)
    sections: dict[str, Any] = {"train": {"optimizer": kind, "lr": KINDS[kind]}, "adapter": {"type": adapter}}
    stand = Stand(model, **sections)
    losses = [stand.step(step) for step in range(1, 5)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(5, 8)]
    again = Stand(model, **sections)
    again.restore(kept)
    assert [again.step(step) for step in range(5, 8)] == losses[4:]
    assert again.saved() == stand.saved() and losses[-1] < losses[0]


class Clipped(FlatOptimizer):
    """Moves nothing: what `step` is given stays to be seen."""

    def step(self, lr: float) -> None:
        pass


@pytest.mark.parametrize("most", [0.05, 1e3])
@pytest.mark.parametrize("ranks", [0, 1, 2, 4])
def test_gradients_are_clipped_as_torch_clips_them(ranks: int, most: float) -> None:
    """Summed over micro-batches and ranks first, then by the norm of all; 0: a block as it is, else in pieces that ranks share out."""
    torch.manual_seed(0)
    leaves = {name: torch.zeros(shape, requires_grad=True) for name, shape in (("a", (5, 7)), ("b", (11,)), ("c", (3, 4)))}
    for _ in range(4):  # micro-batches
        sum((torch.randn_like(leaf) * leaf).sum() for leaf in leaves.values()).backward()  # type: ignore[union-attr]
    whole = {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}
    norm = torch.nn.utils.clip_grad_norm_(leaves.values(), most)
    units = [Unit.of({"a": leaves["a"], "b": leaves["b"]}, 4), Unit.of({"c": leaves["c"]}, 4)]
    flat = [torch.cat([whole[name].view(-1) for name in unit.tensors]) for unit in units]
    held, hooks = [], []
    for number in range(max(ranks, 1)):
        hook = Pieces(units, 4, number, ranks) if ranks else StepHooks()
        own = [block[slice(*hook.own(unit))] for unit, block in zip(units, flat, strict=True)] if isinstance(hook, Pieces) else flat
        held.append(Clipped({str(at): torch.zeros_like(part, requires_grad=True) for at, part in enumerate(own)}, Train()))
        held[-1].gradient.copy_(torch.cat(own))
        hooks.append(hook)
    told: list[torch.Tensor] = []
    for hook, optimizer in zip(hooks, held, strict=True):
        hook.norm(optimizer, lambda norms: told.append(norms.clone()))
    found: list[list[torch.Tensor]] = [[] for _ in units]
    for hook, optimizer in zip(hooks, held, strict=True):
        ours = hook.norm(optimizer, lambda norms: norms.copy_(sum(told)))  # type: ignore[arg-type]
        assert float(ours) == but_for_rounding(float(norm), 58)
        update(optimizer, Gradients(1.0, float(ours), 1, 1), 1e-3, most)
        for at, part in enumerate(optimizer.parts(optimizer.gradient)):
            found[at].append(part)
    wanted = [torch.cat([leaves[name].grad.view(-1) for name in unit.tensors]) for unit in units]  # type: ignore[union-attr]
    for mine, theirs in zip(found, wanted, strict=True):
        assert_equal_but_for_rounding(torch.cat(mine), theirs, 58)


def decayed_sgd(ones: list[torch.Tensor], decay: float) -> torch.optim.Optimizer:
    """torch's SGD, whose decay goes into the momentum, with one that is taken off the weights as in the others."""
    optimizer = torch.optim.SGD(ones, lr=0.1, momentum=0.9)

    def off(*_: Any) -> None:
        with torch.no_grad():
            torch._foreach_mul_(ones, 1 - optimizer.param_groups[0]["lr"] * decay)

    optimizer.register_step_pre_hook(off)
    return optimizer


REFERENCES: dict[str, Callable[[list[torch.Tensor], float], torch.optim.Optimizer]] = {
    "sgd": decayed_sgd,
    "adafactor": lambda ones, decay: torch.optim.Adafactor(ones, lr=0.1, weight_decay=decay),
    "adamw": lambda ones, decay: torch.optim.AdamW(ones, lr=0.1, weight_decay=decay),
    "muon": lambda ones, decay: torch.optim.Muon(ones, lr=0.1, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", [*REFERENCES, "lion", "adamw8bit"])
def test_an_update_is_the_plain_one(kind: str, decay: float) -> None:
    needs(kind)
    torch.manual_seed(0)
    begin = {"a": torch.randn(64, 64), "b": torch.randn(16, 16) if kind == "muon" else torch.randn(256)}
    train = Train(steps=1, optimizer=kind, weight_decay=decay)  # type: ignore[arg-type]
    ours = optimizer_of({name: one.clone() for name, one in begin.items()}, train)
    theirs = {name: one.clone().requires_grad_() for name, one in begin.items()}
    if kind in REFERENCES:
        reference: Any = REFERENCES[kind]([*theirs.values()], decay)
    else:
        optim = pytest.importorskip("bitsandbytes").optim
        made = {"lion": optim.Lion, "adamw8bit": optim.AdamW8bit}[kind]
        least = {"min_8bit_size": 1} if kind != "lion" else {}
        reference = made([*theirs.values()], lr=0.1, weight_decay=decay, betas=(0.9, 0.999), **least)
    for step in range(8):
        rate = 0.1 / (1 + step % 3)
        for name, one in theirs.items():
            one.grad = torch.randn_like(one) * 10.0 ** (step % 3 - 1)
            part = ours.parameters[name].grad
            assert part is not None
            part.copy_(one.grad)
        for group in reference.param_groups:
            group["lr"] = rate
        ours.step(rate)
        reference.step()
    for name, one in theirs.items():
        assert_equal_but_for_rounding(ours.parameters[name], one, OPERATIONS, what=name)


def authors(begin: torch.Tensor, gradients: list[torch.Tensor], rates: list[float], decay: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights the model computes with, their mean) after these steps, as schedulefree's AdamW has them: y and z held, in fp64."""
    y, z, square, total, peak = begin.double(), begin.double(), torch.zeros_like(begin).double(), 0.0, 0.0
    for step, (gradient, lr) in enumerate(zip(gradients, rates, strict=True), 1):
        peak = max(peak, lr)
        total += peak**2
        share = peak**2 / total if total else 0.0
        square = 0.999 * square + 0.001 * gradient.double() ** 2
        move = gradient.double() / ((square / (1 - 0.999**step)).sqrt() + 1e-8) + decay * y
        y = torch.lerp(y, z, share) + lr * (0.9 * (1 - share) - 1) * move
        z = z - lr * move
    return y, torch.lerp(z, y, 1 / 0.9)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_schedule_free_is_the_authors(decay: float) -> None:
    torch.manual_seed(0)
    begin, rates = torch.randn(64, 64), [0.0, 0.05, 0.1, 0.1, 0.05, 0.1]
    ours = optimizer_of({"a": begin.clone()}, Train(steps=1, optimizer="schedule_free", weight_decay=decay))
    gradients = [torch.randn_like(begin) for _ in rates]
    for gradient, lr in zip(gradients, rates, strict=True):
        ours.gradient.copy_(gradient.flatten())
        ours.step(lr)
    held, mean = authors(begin, gradients, rates, decay)
    with ours.judged():
        judged = ours.parameters["a"].clone()
    assert torch.equal(judged, ours.kept()["a"])
    assert_equal_but_for_rounding(judged, mean, OPERATIONS)
    assert_equal_but_for_rounding(ours.parameters["a"], held, OPERATIONS)
    assert distance(judged, ours.parameters["a"]) > 1e-3


def test_schedule_free_has_no_schedule() -> None:
    assert Train(steps=1, optimizer="schedule_free").schedule == "constant"
    with pytest.raises(ValueError, match="schedule_free has no schedule, and schedule is linear"):
        Train(steps=1, optimizer="schedule_free", schedule="linear")


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit", "lion", "sgd"])
def test_an_update_needs_little_beside_a_large_block(kind: str) -> None:
    needs(kind)
    optimizer = optimizer_of({"a": torch.ones(8 << 20)}, Train(steps=1, optimizer=kind))  # type: ignore[arg-type]
    optimizer.gradient.fill_(1.0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        optimizer.step(1e-3)
    now = most = 0
    for event in sorted(watched.profiler.kineto_results.events(), key=lambda event: event.start_ns()):  # type: ignore[union-attr]
        now += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, now)
    assert most <= 17 << 20, "a stretch of 4 million weights, not another block of 32 MiB"


def test_what_an_optimizer_cannot_do_is_told() -> None:
    for sections, said in (
        ({"train": {"optimizer": "adamw8bit"}, "adapter": {"lr_ratio": 4.0}}, "adamw8bit has one for all"),
        ({"train": {"optimizer": "muon"}, "adapter": {"init": "pissa"}}, "muon moves them"),
        ({"train": {"optimizer": "schedule_free"}, "adapter": {"type": "adalora", "target_r": 2}}, "schedule_free keeps their mean"),
        ({"train": {"weight_decay": 0.1}, "adapter": {"init": "olora"}}, "weight_decay shrinks them"),
    ):
        with pytest.raises(ValueError, match=said):
            Config.model_validate({"model": "tiny", "data": {"files": "x"}} | sections)
