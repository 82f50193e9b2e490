"""bf16 mixed precision: near fp32 on every architecture, deaf to no young adapter, measured before it is used, the same after a death."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import events, holdfast, lines, settings_with
from holdfast.base.files import read_json
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.config.config import Config
from holdfast.machine.facts import has_bf16
from holdfast.machine.place import Place
from holdfast.machine.system import read_system
from holdfast.planning.precision import choose_precision
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry, read_timeline
from holdfast.trainer.common.job import Job
from holdfast.trainer.distributed.rank import ALONE
from holdfast.trainer.loop.loop import _settle
from holdfast.trainer.model.layers import lora, mixed
from holdfast.trainer.model.layers.lora import use_lean_lora
from holdfast.trainer.model.layers.mixed import JoinedLinear, JoinedMatrix
from holdfast.trainer.tasks.text import proof
from support.architectures import (
    ARCHITECTURES,
    HYBRIDS,
    LABELS,
    LENGTHS,
    ROUNDINGS,
    assert_equal_in_16_bits,
    gradients,
    one_by_one,
    task_of,
)
from support.rounding import assert_equal_but_for_rounding, but_for_rounding


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("name", [*ARCHITECTURES, *HYBRIDS])
def test_losses_and_gradients_are_near_those_of_fp32_one_by_one(name: str) -> None:
    config = (ARCHITECTURES | HYBRIDS)[name]()
    packing = name in ARCHITECTURES
    task = task_of(config, packing=packing, dropout=0.1, mixed=True)
    assert packing is False or proof.disproof(task) == ({}, "")
    found = gradients(task, task.batches(list(range(len(LENGTHS))), 64))
    assert_equal_in_16_bits(found, one_by_one(config, dropout=0.1))
    assert all(grad.dtype == torch.float32 for grad in found[1].values())


@pytest.mark.parametrize("name", ["qwen2", "llama", "gemma3"])
def test_layers_with_one_input_are_one_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout q, k and v are one product, biases included, and gate and up are; the gradients are those of each by itself."""
    made = []
    monkeypatch.setattr(lora, "JoinedMatrix", lambda layers, *more: made.append(len(layers)) or mixed.JoinedMatrix(layers, *more))
    config = ARCHITECTURES[name]()
    task = task_of(config, mixed=True)
    assert made == [3, 2, 3, 2, 1, 1, 1, 1], "two layers: q k v, gate up, then what is alone"
    assert_equal_in_16_bits(gradients(task, task.batches(list(range(len(LENGTHS))), 64)), one_by_one(config))


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_a_backward_pass_takes_the_adapter_of_its_forward_pass(half: torch.dtype) -> None:
    """Between the two the adapter of a reference may have been put in, as KTO does, or another thread's."""
    layer, x = layer_of(0.05, half)
    (a,), (b,) = layer.lora_A.values(), layer.lora_B.values()
    own = [tensor.detach().clone().requires_grad_() for tensor in (a.weight, b.weight)]
    joined = JoinedMatrix([layer], half)
    given = x.clone().requires_grad_()

    def passed(between: Callable[[], object]) -> list[Tensor]:
        (out,) = JoinedLinear.apply(given, joined, 2.0, None, *own)  # type: ignore[no-untyped-call]
        between()
        return [*torch.autograd.grad(out, [given, *own], torch.ones_like(out))]

    def other() -> None:
        JoinedLinear.apply(x, joined, 2.0, None, *[torch.full_like(tensor, 7.0) for tensor in own])  # type: ignore[no-untyped-call]

    for one, two in zip(passed(lambda: None), passed(other), strict=True):
        assert torch.equal(one, two)


def test_no_gradient_depends_on_what_lay_in_the_memory_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *given, **named: made(*given, **named).fill_(float("nan")))
    task = task_of(HYBRIDS["ssm hybrid"](), packing=False, dropout=0.1, mixed=True)
    _, grads = gradients(task, task.batches(list(range(len(LENGTHS))), 64))
    assert [name for name, grad in grads.items() if not grad.isfinite().all()] == []


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_rank_that_is_no_multiple_of_eight_is_filled_up_with_zeros_on_a_card(monkeypatch: pytest.MonkeyPatch, dropout: float) -> None:
    rows, config = list(range(len(LENGTHS))), ARCHITECTURES["llama"]()
    wanted = gradients(bare := task_of(config, dropout=dropout, mixed=True), bare.batches(rows, 64))
    monkeypatch.setattr(mixed, "on_card", lambda _: True)
    task = task_of(config, dropout=dropout, mixed=True)
    weight = task.base.model.layers[0].mlp.up_proj.base_layer.weight
    assert weight.stride(0) == 32 + (8 if dropout else 2 * 8) and task.artifact[next(iter(task.artifact))].shape[0] == 4
    assert_equal_in_16_bits(gradients(task, task.batches(rows, 64)), wanted)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "gpt2"])
def test_matrices_are_bf16_and_all_else_is_fp32(name: str) -> None:
    task = task_of(ARCHITECTURES[name](), mixed=True)
    kinds = {name: parameter.dtype for name, parameter in task.model.named_parameters()}
    assert all(kind == (torch.bfloat16 if _frozen_matrix(name, task) else torch.float32) for name, kind in kinds.items()), kinds
    streams: list[torch.dtype] = []
    layers = task.base.transformer.h if name == "gpt2" else task.base.model.layers
    layers[1].register_forward_pre_hook(lambda _module, given: streams.append(given[0].dtype))
    gradients(task, task.batches([0], 64))
    assert set(streams) == {torch.float32}, "the residual stream"


def _frozen_matrix(name: str, task: Any) -> bool:
    """A frozen matrix, or the bias beside one."""
    beside = task.model.get_submodule(name.rpartition(".")[0]).parameters(recurse=False)
    return "lora_" not in name and any(parameter.ndim > 1 for parameter in beside)


def layer_of(b: float, half: torch.dtype = torch.bfloat16) -> tuple[Any, Tensor]:
    """A LoRA layer in mixed precision whose B holds +-b, and an input."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(256, 512, bias=False)).to(half)
    model: Any = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=["0"]))
    layer = model.base_model.model[0]
    nn.init.normal_(layer.lora_A["default"].weight, std=0.05)
    layer.lora_B["default"].weight.data = b * torch.randn(512, 8).sign()
    use_lean_lora(model, half)
    return layer, torch.randn(4096, 256).to(half)


def test_what_a_young_adapter_says_is_heard() -> None:
    """Parts far below half a unit of the product's last place: rounded once, they are there on average; added to rounded products, lost."""
    layer, x = layer_of(1e-4)
    (a,), (b,) = layer.lora_A.values(), layer.lora_B.values()
    with torch.no_grad():
        part = 2.0 * (x.float() @ a.weight.t()) @ b.weight.t()
        product = x.float() @ layer.base_layer.weight.float().t()
        late = product.bfloat16() + part.bfloat16()
        heard, lost = (float(((out.float() - product) * part).mean() / (part * part).mean()) for out in (layer(x), late))
    assert float(part.abs().mean()) < 1e-3 * float(product.abs().mean())
    assert heard == pytest.approx(1.0, abs=0.15)  # a mean over two million elements, off by a hundredth of that
    assert lost < 0.7, "this way it would have been lost, so the test can tell"


@pytest.mark.parametrize("rows", [1, 31, 32, 700])
def test_zero_rows_change_nothing(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(0.05)
    x = x[:rows]

    def passed() -> list[Tensor]:
        given = x.clone().requires_grad_()
        out = layer(given)
        (out.float() ** 2).sum().backward()
        grads = [given.grad, *(part.weight.grad for part in (*layer.lora_A.values(), *layer.lora_B.values()))]
        layer.zero_grad()
        return [out.detach(), *(grad for grad in grads if grad is not None)]

    ours = passed()
    assert len(mixed.padded(x)) % 32 == 0 and not mixed.padded(x)[rows:].any()
    monkeypatch.setattr(mixed, "padded", lambda tensor, columns=0: nn.functional.pad(tensor, (0, columns)))
    monkeypatch.setattr(mixed, "padded_together", lambda parts, columns: nn.functional.pad(torch.cat([*parts], 1), (0, columns)))
    for one, other in zip(ours, passed(), strict=True):
        assert_equal_but_for_rounding(one.float(), other.float(), 4, torch.bfloat16)  # products with A, B and the weight, and their sum


BIG = ModelFacts(Path("m"), {}, {"l.weight": (4096, 4096)}, 0)
SMALL = ModelFacts(Path("m"), {}, {"l.weight": (512, 512)}, 0)


@pytest.mark.parametrize(
    ("asked", "machine", "model", "chosen", "word"),
    [
        ("auto", {"gpus": [], "cpu": {"bf16": True}}, BIG, "bf16", "faster"),
        ("auto", {"gpus": [], "cpu": {"bf16": True}}, SMALL, "fp32", "262,144 parameters"),
        ("auto", {"gpus": [], "cpu": {"bf16": False}}, BIG, "fp32", "no units"),
        ("auto", {"gpus": [], "cpu": {}}, BIG, "fp32", "no units"),
        ("auto", {}, BIG, "fp32", "no units"),
        ("auto", {"gpus": [], "cpu": {"bf16": True}, "probes": {"matmul": {"outcome": "ok", "bf16_speed": 0.4}}}, BIG, "fp32", "probe"),
        ("auto", {"gpus": [], "cpu": {"bf16": True}, "probes": {"matmul": {"outcome": "ok", "bf16_speed": 3.0}}}, BIG, "bf16", "faster"),
        ("auto", {"gpus": [], "cpu": {"bf16": True}, "probes": {"matmul": {"outcome": "wrong"}}}, BIG, "fp32", "probe"),
        ("auto", {"gpus": [{"vendor": "nvidia", "arch": "sm_90"}], "cpu": {"bf16": False}}, BIG, "bf16", "faster"),
        ("auto", {"gpus": [{"vendor": "nvidia", "arch": "sm_75"}], "cpu": {"bf16": True}}, BIG, "fp16", "scaled loss"),
        ("auto", {"gpus": [{"vendor": "nvidia", "arch": "sm_70"}]}, SMALL, "fp32", "262,144 parameters"),
        ("auto", {"gpus": [{"vendor": "nvidia", "arch": "sm_75"}], "probes": {"matmul": {"outcome": "wrong"}}}, BIG, "fp32", "probe"),
        ("auto", {"gpus": [{"vendor": "nvidia", "arch": "sm_61"}]}, BIG, "fp32", "no units"),
        ("auto", {"gpus": [{"vendor": "amd", "arch": "gfx1030"}]}, BIG, "fp16", "scaled loss"),
        ("auto", {"gpus": [{"vendor": "amd", "arch": "gfx906"}]}, BIG, "fp16", "scaled loss"),
        ("bf16", {"gpus": [], "cpu": {"bf16": False}}, SMALL, "bf16", "config"),
        ("fp32", {"gpus": [{"vendor": "nvidia", "arch": "sm_90"}]}, BIG, "fp32", "config"),
    ],
)
def test_auto_takes_the_16_bits_that_the_device_is_fast_at(asked: str, machine: Any, model: ModelFacts, chosen: str, word: str) -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"precision": asked}})
    precision, why = choose_precision(config, model, machine)
    assert precision == chosen and word in why


@pytest.mark.parametrize(
    ("arch", "has"),
    [
        *[("sm_75", False), ("sm_80", True), ("sm_120a", True), ("sm_", None), (None, None), ("unknown", None)],
        *[("gfx906", False), ("gfx908", True), ("gfx1030", False), ("gfx1100", True), ("gfx1201", True)],
    ],
)
def test_architectures_with_bf16(arch: str | None, has: bool | None) -> None:
    assert has_bf16(arch) is has


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor : 0\nmodel name : X\nflags : fpu avx512f avx512_bf16\n", True),
        ("flags : fpu amx_tile amx_bf16\n", True),
        ("flags : fpu avx2\n", False),
        ("Features : fp asimd bf16\n", True),
        ("hardware : none\n", None),
    ],
)
def test_the_cpu_says_whether_it_multiplies_bf16(tmp_path: Path, text: str, expected: bool | None) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    assert read_system(Place(tmp_path), None)["cpu"]["bf16"] is expected


@pytest.mark.parametrize(("wide", "narrow", "changes"), [(2.0, 1.0, {}), (1.0, 2.0, {"dtype": "fp32"})])
def test_the_trainer_measures_first(monkeypatch: pytest.MonkeyPatch, wide: float, narrow: float, changes: Any) -> None:
    monkeypatch.setattr(proof, "_seconds", lambda x, _matrix: wide if x.dtype == torch.float32 else narrow)
    found, reason = proof.slower_in_halves(read_model("tiny"))
    assert found == changes and ("2.0 times" in reason) is bool(changes)


@pytest.mark.parametrize(("precision", "dtypes"), [("auto", ["bf16", "fp32"]), ("bf16", ["bf16"])])
def test_what_was_measured_is_on_the_timeline_before_a_model_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str, dtypes: list[str]
) -> None:
    monkeypatch.setattr(proof, "_seconds", lambda x, _matrix: 1.0 if x.dtype == torch.float32 else 2.0)
    config = Config.model_validate({"model": "tiny", "data": {"files": ["f"]}, "train": {"precision": precision}})
    run = RunFolder(tmp_path)
    settings = settings_with(dtype="bf16", threads=torch.get_num_threads(), deterministic=False).model_dump()
    add_entry(run.timeline_file, Entry(1, settings, "the plan"))
    _settle(Job(run, 1, tmp_path, config, {}, read_timeline(run.timeline_file), []), ALONE)
    assert [entry.settings["dtype"] for entry in read_timeline(run.timeline_file)] == dtypes
    assert [event["what"] for event in run.events()] == ["dtype -> fp32"] * (len(dtypes) - 1)


def test_a_run_in_bf16_survives_a_kill_and_learns_as_in_fp32(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(train={"steps": 8}, run={"standby": False})
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {name: killed, effect: kill, when: {step: 5, attempt: 1}}")
    for name, changes in {
        "fp32": ["train.precision=fp32"],
        "bf16": ["train.precision=bf16"],
        "killed": ["train.precision=bf16", "--faults", faults],
    }.items():
        done = holdfast("train", config, *changes, "--run", tmp_path / name)
        assert done.returncode == 0, done.stderr
    assert events(tmp_path / "killed", "attempt_ended"), "nobody was killed"
    fp32, bf16, killed = (read_json(tmp_path / name / "summary.json") for name in ("fp32", "bf16", "killed"))
    assert fp32 and bf16 and killed
    assert killed["artifact_sha256"] == bf16["artifact_sha256"] != fp32["artifact_sha256"]
    losses = [[row["loss"] for row in lines(tmp_path / name / "steps.jsonl")] for name in ("fp32", "bf16")]
    assert losses[1] == but_for_rounding(losses[0], ROUNDINGS / LABELS, torch.bfloat16)
