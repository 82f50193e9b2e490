"""Fused LoRA layers give what each layer alone gives, hold nothing after a failure, and are left out, with the reason, where unproven.
So is the loss whose kernel turns logits into their gradient.

The kernels themselves run here through Triton's interpreter (interpreted_lora.py), where Triton is installed; without it, stand-ins that
take and fill the same memory.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.planning.plan import make_plan, settings_of
from holdfast.trainer.common.hashed_bits import mix
from holdfast.trainer.model import kernels
from holdfast.trainer.model.layers.dropout import StatelessDropout, StepContext
from holdfast.trainer.model.layers.fused import FusedLayers
from holdfast.trainer.tasks.text.proof import fused_differ
from support.architectures import ARCHITECTURES, LENGTHS, assert_equal, assert_equal_in_16_bits, gradients, task_of
from support.interpreted import run_interpreted
from support.plans import a_plan
from support.rounding import assert_equal_but_for_rounding
from support.stand import Stand, model_folder

ROWS = list(range(len(LENGTHS)))
Change = Callable[[Tensor], Tensor]


class Launched:
    """`kernel[grid](...)` of a function, which is given the arguments by name."""

    def __init__(self, names: str, work: Callable[[types.SimpleNamespace], None]) -> None:
        self.names, self.work = names.split(), work

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(blocks > 0 for blocks in grid)
        return lambda *given, **sizes: self.work(types.SimpleNamespace(**dict(zip(self.names, given, strict=True)), **sizes))


def keep(k: types.SimpleNamespace, at: int, features: int) -> Tensor:
    """As the kernels draw it: from hashes, keys and a number, of any module."""
    first, second = k.keys[k.at + at]
    pairs = torch.arange((features + 1) // 2, dtype=torch.int32) * -1640531527 + second
    words = mix(mix(k.rows ^ first)[:, None] ^ mix(pairs))
    return words.view(torch.int16)[:, :features] >= k.dropped - (1 << 15)


def kept(k: types.SimpleNamespace, at: int, x: Tensor, masks: Change) -> Tensor:
    return x * masks(keep(k, at, x.shape[1])) if k.DROP else x


def stand_ins(masks: Change = lambda mask: mask, sums: Change = lambda values: values) -> Any:
    """The kernels by torch's operations; `masks` and `sums` change what they draw and what they leave."""

    def project(k: types.SimpleNamespace) -> None:
        h = k.h.zero_()[0] if k.CUT else k.h
        for at, a in enumerate((k.a0, k.a1, k.a2)[: k.G]):
            block = (1.0 if k.CUT else k.scale) * kept(k, at, k.x.float(), masks) @ a.to(k.x.dtype).float().t()
            h[:, at * k.PADDED : (at + 1) * k.PADDED] = torch.nn.functional.pad(block, (0, k.PADDED - k.RANK))
        if k.WIDE:
            k.wide[:, : k.features] = k.x
            if not k.CUT:
                k.wide[:, k.features :] = h

    def join(k: types.SimpleNamespace) -> None:
        k.h.copy_(k.scale * k.parts.sum(0))
        if k.WIDE:
            k.wide[:, k.features :] = k.h

    def blocks(k: types.SimpleNamespace) -> list[Tensor]:
        return [block.float() for block in k.dh.split(k.PADDED, 1)]

    def spread(k: types.SimpleNamespace) -> None:
        parts = zip(blocks(k), (k.a0, k.a1, k.a2), strict=False)
        products = [block[:, : k.RANK] @ a.to(k.dh.dtype).float() for block, a in parts]
        k.dx.copy_(k.scale * sum(kept(k, at, product, masks) for at, product in enumerate(products)))

    def gather(k: types.SimpleNamespace) -> None:
        k.parts.zero_()[0] = sums(torch.cat([k.scale * b.t() @ kept(k, at, k.x.float(), masks) for at, b in enumerate(blocks(k))]))

    drawn = "rows keys at dropped scale"
    return types.SimpleNamespace(
        project=Launched(f"x a0 a1 a2 {drawn} h wide tokens features stretch", project),
        join=Launched("parts h wide scale tokens cuts width features", join),
        spread=Launched(f"dh a0 a1 a2 {drawn} dx tokens features", spread),
        gather=Launched(f"x dh {drawn} parts tokens shares features", gather),
    )


@pytest.fixture
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, stand_ins())


def of_loss(change: Change = lambda values: values, hits: Change = lambda hits: hits) -> Any:
    """The loss's kernel by torch's operations; `change`: of the gradient it leaves, `hits`: of which labels it takes for the largest."""

    def slopes(k: types.SimpleNamespace) -> None:
        logits = k.logits.float() * k.scale
        picked = logits.gather(1, k.labels[:, None])[:, 0]
        k.losses.copy_(logits.logsumexp(1) - picked)
        k.right.copy_(hits(picked == logits.amax(1)))
        if k.GRAD:
            hot = torch.nn.functional.one_hot(k.labels, logits.shape[1])
            k.logits.copy_(change(logits.softmax(1) - hot) * k.scale)

    return types.SimpleNamespace(slopes=Launched("logits labels losses right columns scale", slopes))


def of_widen(scales: Change = lambda scales: scales) -> Any:
    """What widens by torch's operations; `scales` changes those of the blocks."""

    def widen(k: types.SimpleNamespace) -> None:
        if not k.FOUR:
            wide = k.packed.float() * scales(k.scales)[:, None]
        else:
            shared = k.scales
            if k.NESTED:
                shared = k.codes[k.scales.long()] * k.outer.repeat_interleave(k.OUTER)[: len(k.scales)] + k.offset
            halves = torch.stack([k.packed.flatten() >> 4, k.packed.flatten() & 15], 1).flatten()
            wide = (k.code[halves.long()] * scales(shared).repeat_interleave(k.BLOCK)[: len(halves)]).view(k.rows, k.features)
        k.out.zero_()[:, : k.features] = wide
        if k.PADDED:
            k.out[:, k.features + k.before :] = k.up

    return types.SimpleNamespace(
        widen=Launched("packed scales code codes outer offset up out rows features before width", widen),
    )


def install(monkeypatch: pytest.MonkeyPatch, made: Any, loss: Any = None, widen: Any = None) -> None:
    for name, module in (("lora", made), ("loss", loss or of_loss()), ("widen", widen or of_widen())):
        monkeypatch.setitem(sys.modules, f"holdfast.trainer.model.kernels.{name}", module)
        monkeypatch.setattr(kernels, name, module, raising=False)


def fused_task(name: str, dropout: float = 0.2, mixed: bool = False) -> Any:
    task = task_of(ARCHITECTURES[name](), dropout=dropout, mixed=mixed)
    task.fused = FusedLayers(task.model, task.context, mixed)
    task.losses.head.fused = True
    return task


@pytest.mark.matrix
@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_layers_together_learn_what_they_learn_alone(name: str, mixed: bool) -> None:
    plain = task_of(ARCHITECTURES[name](), dropout=0.2, mixed=mixed)
    wanted = gradients(plain, plain.batches(ROWS, 64))
    task = fused_task(name, mixed=mixed)
    assert fused_differ(task) == ({}, "")
    for layers in (0, 1):
        task.adopt({"checkpointed_layers": layers})
        found = gradients(task, task.batches(ROWS, 64))
        if mixed:
            assert_equal_in_16_bits(found, wanted)
        else:
            assert_equal(found, wanted)
    assert all(not group.waiting for group in task.fused.groups)


@pytest.mark.matrix
@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("kind", "double"), [("nf4", False), ("nf4", True), ("fp4", True), ("int8", False)])
def test_layers_in_fewer_bits_learn_together_what_they_learn_alone(
    in_fewer_bits: Callable[..., Any], kind: str, double: bool, dtype: str
) -> None:
    wanted, found = (in_fewer_bits(kind, double, dtype, fused) for fused in (False, True))
    assert fused_differ(found) == ({}, "")
    assert not any(group.matrices for group in found.fused.groups), "no weight is kept wide"
    alone, together = (gradients(task, task.batches([0, 1, 2, 3], 64)) for task in (wanted, found))
    if dtype == "bf16":
        assert_equal_in_16_bits(together, alone)
    else:
        assert_equal(together, alone)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_weights_that_are_widened_wrongly_are_found_out(
    monkeypatch: pytest.MonkeyPatch, in_fewer_bits: Callable[..., Any], kind: str
) -> None:
    install(monkeypatch, stand_ins(), widen=of_widen(lambda scales: scales * (1 + 0.1 * (torch.arange(len(scales)) == 0))))
    changes, reason = fused_differ(in_fewer_bits(kind, False, "fp32", True))
    assert changes == {"fused": False} and "of a layer with" in reason


@pytest.fixture
def in_fewer_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A task over weights in 4 or 8 bits: (kind, are scales held in 8 bits, dtype, fused)."""
    pytest.importorskip("bitsandbytes")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    folder = model_folder(tmp_path / "model", dtype=torch.bfloat16)

    def made(kind: str, double: bool, dtype: str, fused: bool) -> Any:
        how = {"frozen": kind, "double_quant": double}
        task: Any = Stand(folder, settings=how | {"dtype": dtype}, train=how, adapter={"dropout": 0.2}).task
        for name, parameter in task.model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.constant_(parameter, 0.1)
        if fused:
            task.fused = FusedLayers(task.model, task.context, dtype == "bf16")
        return task

    return made


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "bf16"])
def test_weights_that_go_between_forward_and_backward_come_back_without_what_was_put_beside_them(mixed: bool) -> None:
    task = fused_task("llama", mixed=mixed)
    wanted = gradients(task, task.batches(ROWS, 64))
    away = task_of(ARCHITECTURES["llama"](), dropout=0.2, mixed=mixed)
    away.fused = FusedLayers(away.model, away.context, mixed, lambda *_: nullcontext())
    away.losses.head.fused = True
    for batch in away.batches(ROWS, 64):
        loss, _ = away.loss_sum(batch, 1)
        for group in away.fused.groups:
            group.fill((torch.zeros(group.rank),) * len(group.layers))
        loss.backward()
    for name, parameter in away.model.named_parameters():
        assert parameter.grad is None or torch.equal(parameter.grad, wanted[1][name]), name


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "bf16"])
def test_what_reads_one_input_is_one_group(mixed: bool) -> None:
    groups = fused_task("qwen2", mixed=mixed).fused.groups
    assert [len(group.layers) for group in groups] == [3, 2, 3, 2, 1, 1, 1, 1]
    assert [group.joined for group in groups[:2]] == [mixed, False], "gate and up are too wide to lie side by side for nothing"


@pytest.mark.usefixtures("_stand_ins")
def test_no_mask_is_kept_for_backward() -> None:
    task = fused_task("llama", dropout=0.2)
    kinds = []

    def packed(tensor: Tensor) -> Tensor:
        kinds.append(tensor.dtype)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        task.loss_sum(task.batches(ROWS, 64)[0], 1)
    assert kinds and torch.bool not in kinds and torch.int32 not in kinds


@pytest.mark.usefixtures("_stand_ins")
def test_a_pass_that_fails_between_two_layers_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    task = fused_task("llama")
    group = task.fused.groups[0]

    def full(_at: int, _x: Tensor) -> Tensor:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(group.layers[1], "forward", lambda x: full(1, x))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        task.loss_sum(task.batches(ROWS, 64)[0], 1)
    assert not group.waiting


@pytest.mark.usefixtures("_stand_ins")
def test_keys_stay_in_one_place_and_follow_the_step() -> None:
    context = StepContext(1)
    modules = [StatelessDropout(0.5, name, context).train() for name in ("first", "second")]
    context.keep_keys(torch.device("cpu"))
    place = torch.arange(8)[None]
    seen = []
    for step in (1, 2, 1):
        context.enter(step, place, place)
        assert context.keys is not None
        seen.append((context.keys.data_ptr(), context.keys.clone()))
    assert seen[0][0] == seen[1][0]
    assert torch.equal(seen[0][1], seen[2][1]) and not torch.equal(seen[0][1], seen[1][1])
    assert [module.number for module in modules] == [0, 1]


def _one_bit(mask: Tensor) -> Tensor:
    changed = mask.clone()
    changed[0, -1] = ~changed[0, -1]
    return changed


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"masks": _one_bit}, "elements of a dropout mask are not those of the hash"),
        ({"sums": lambda values: values * 1.01}, "the gradient of A of a layer with 32 features differs by 1.0e-02"),
    ],
    ids=["a bit of a mask", "a sum"],
)
def test_kernels_that_compute_something_else_are_left_out(monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any], says: str) -> None:
    install(monkeypatch, stand_ins(**broken))
    changes, reason = fused_differ(fused_task("llama"))
    assert changes == {"fused": False}
    assert "the kernels of LoRA layers and loss are left out" in reason and says in reason


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"change": lambda values: values * 1.05}, "the gradients of the loss's kernel differ by 5.0e-02 of their norm"),
        ({"change": lambda values: values * math.nan}, "the gradients of the loss's kernel differ by nan of their norm"),
        ({"hits": lambda hits: ~hits}, "the hits of the loss's kernel differ"),
    ],
    ids=["a gradient", "no number", "the largest"],
)
def test_a_loss_that_computes_something_else_is_left_out(monkeypatch: pytest.MonkeyPatch, broken: dict[str, Any], says: str) -> None:
    install(monkeypatch, stand_ins(), of_loss(**broken))
    changes, reason = fused_differ(fused_task("llama"))
    assert changes == {"fused": False} and says in reason


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize(("name", "asked"), [("llama", True), ("gemma2", False), ("granite", True)], ids=["plain", "capped", "scaled"])
def test_the_kernel_is_asked_for_the_losses_it_knows(monkeypatch: pytest.MonkeyPatch, name: str, asked: bool) -> None:
    task = fused_task(name)
    head = task.losses.head
    asked_of = []

    def slopes(logits: Tensor, *given: Any) -> None:
        asked_of.append(logits.shape)
        torch.ops.holdfast.slopes(logits, *given)

    monkeypatch.setattr(kernels.ops, "slopes", slopes)
    hidden = torch.randn(9, head.layer.in_features, requires_grad=True)
    labels = torch.randint(head.layer.out_features, (9,))
    found = []
    for fused in (True, False):
        head.fused = fused
        losses, right = head.losses(hidden, labels)
        found.append([losses.detach(), right, torch.autograd.grad((losses * torch.arange(9)).sum(), hidden)[0]])
    assert bool(asked_of) == asked
    for one, other in zip(*found, strict=True):
        assert_equal_but_for_rounding(one, other, head.layer.out_features)
    with torch.no_grad():
        assert_equal_but_for_rounding(head.losses(hidden, labels)[0], found[0][0], head.layer.out_features)


@pytest.mark.usefixtures("_stand_ins")
def test_losses_in_chunks_are_those_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    head = fused_task("llama").losses.head
    hidden, labels = torch.randn(10, head.layer.in_features, requires_grad=True), torch.randint(head.layer.out_features, (10,))
    found = []
    for rows in (10, 3):
        monkeypatch.setattr("holdfast.trainer.model.head._BYTES_AT_ONCE", 4 * rows * head.layer.out_features)
        losses, _ = head.losses(hidden, labels)
        found.append([losses.detach(), torch.autograd.grad(losses.sum(), hidden)[0]])
    for one, other in zip(*found, strict=True):
        assert_equal_but_for_rounding(one, other, head.layer.out_features)


def test_outputs_that_are_given_to_the_wrong_layers_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, stand_ins())
    task = fused_task("llama")
    group = task.fused.groups[0]
    for at, other in ((1, 2), (2, 1)):
        group.layers[at].forward = lambda x, at=at, other=other: group.forward(at if group.alone else other, x)
    changes, reason = fused_differ(task)
    assert changes == {"fused": False} and "loss and gradients differ" in reason


def test_without_triton_each_layer_computes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "holdfast.trainer.model.kernels.lora", raising=False)
    monkeypatch.delattr(kernels, "lora", raising=False)
    changes, reason = fused_differ(fused_task("llama"))
    assert changes == {"fused": False} and "triton" in reason


def test_a_gpu_with_triton_begins_with_them() -> None:
    config = Config.model_validate({"model": "tiny", "data": {"files": "rows.jsonl"}})
    plan = a_plan(precision="bf16")
    bare = {"gpus": [{"vendor": "nvidia", "arch": "sm_90", "memory_bytes": 2**37}]}
    cards = [bare | {"packages": {name: "3.5.1"}} for name in ("triton", "triton-rocm", "pytorch-triton-rocm")]
    machines = [{"packages": {"triton": "3.5.1"}}, bare, *cards]
    assert [settings_of(config, plan, machine, 1, 1, 1).fused for machine in machines] == [False, False, True, True, True]
    for train, fused in (({"frozen": "nf4"}, True), ({"fsdp": True, "ranks": 2}, False)):
        one = Config.model_validate({"model": "tiny", "data": {"files": "rows.jsonl"}, "train": train})
        assert settings_of(one, plan, cards[0], 1, 1, 1).fused == fused
    assert not settings_of(config, a_plan(precision="fp16"), cards[0], 1, 1, 1).fused


def test_a_plan_counts_masks_where_no_kernels_draw_them() -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "adapter": {"dropout": 0.05}, "train": {"precision": "bf16"}})
    facts = ModelFacts(Path("m"), {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100}, {}, 0)
    bare = {"gpus": [{"vendor": "nvidia", "arch": "sm_90", "memory_bytes": 2**37}]}
    lengths = {"max": 100, "mean": 50.0, "rows": 1000, "step": 3000}
    without, kernels = (make_plan(config, facts, bare | {"packages": found}, lengths) for found in ({}, {"triton": "3.5.1"}))
    assert without.bytes.activations - kernels.bytes.activations == 2 * without.micro_batch_tokens * (6 * 64 + 128)


@pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")
@pytest.mark.parametrize(
    "case",
    [
        *("masks", "widen", "products-bf16", "loss-bf16", "model-qwen2"),
        *(
            pytest.param(case, marks=pytest.mark.long) for case in ("products-fp32", "loss-fp32", "model-gemma3", "model-gpt2")
        ),  # to a minute of CPU each
    ],
)
def test_the_kernels_interpreted(case: str) -> None:
    run_interpreted(Path(__file__).with_name("interpreted_lora.py"), case)
