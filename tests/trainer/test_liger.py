"""Liger's kernels are used where they are proven, and left out, with the reason, where they are missing or compute something else."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.qwen2 import modeling_qwen2

from conftest import events, holdfast, lines
from holdfast.config.config import Config
from holdfast.planning.plan import settings_of
from holdfast.trainer.model.layers.liger import Liger
from holdfast.trainer.tasks.text.proof import kernels_differ
from support.architectures import ARCHITECTURES, LENGTHS, assert_equal, gradients, task_of
from support.interpreted import run_interpreted
from support.plans import a_plan

OWN_ROTARY = modeling_qwen2.apply_rotary_pos_emb
Kernel = Callable[[Any, Tensor], Tensor]


def norm(module: Any, x: Tensor) -> Tensor:
    return nn.functional.rms_norm(x, x.shape[-1:], module.weight, module.variance_epsilon)


def install(monkeypatch: pytest.MonkeyPatch, kernel: Kernel = norm, rotary: Callable[..., Any] | None = None) -> None:
    """A package that puts `kernel` in place of Qwen2's norms and `rotary` in place of its rotary positions, the way Liger does it."""

    def fused_rotary(*args: Any, **named: Any) -> Any:
        return (rotary or OWN_ROTARY)(*args, **named)

    def apply(model: Any, cross_entropy: bool, fused_linear_cross_entropy: bool) -> None:
        assert not cross_entropy and not fused_linear_cross_entropy, "the loss stays holdfast's"
        if model.config.model_type != "qwen2":
            return
        modeling_qwen2.apply_rotary_pos_emb = fused_rotary
        modeling_qwen2.Qwen2RMSNorm = nn.RMSNorm
        for module in model.modules():
            if "Norm" in type(module).__name__:
                module.__dict__["forward"] = kernel.__get__(module)

    package = types.ModuleType("liger_kernel.transformers.monkey_patch")
    package._apply_liger_kernel_to_instance = apply  # type: ignore[attr-defined]
    for name in ("liger_kernel", "liger_kernel.transformers"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)


def with_liger(name: str = "qwen2") -> Any:
    task = task_of(ARCHITECTURES[name]())
    task.liger = Liger(task.base)
    return task


@pytest.fixture(autouse=True)
def _as_it_was() -> Any:
    own = modeling_qwen2.Qwen2RMSNorm
    yield
    Liger.use(None)
    assert modeling_qwen2.apply_rotary_pos_emb is OWN_ROTARY
    assert modeling_qwen2.Qwen2RMSNorm is own


def test_proven_kernels_are_used_and_stay_with_their_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(module: Any, x: Tensor) -> Tensor:
        calls.append("norm")
        return norm(module, x)

    def rotary(*args: Any, **named: Any) -> Any:
        calls.append("rotary")
        return OWN_ROTARY(*args, **named)

    install(monkeypatch, counted, rotary)
    task, plain = with_liger(), task_of(ARCHITECTURES["qwen2"]())
    assert kernels_differ(task) == ({}, "")
    assert {"norm", "rotary"} == set(calls)
    rows = list(range(len(LENGTHS)))
    for _ in range(2):  # two models in one process, in turn
        calls.clear()
        reference = gradients(plain, plain.batches(rows, 64))
        assert not calls
        ours = gradients(task, task.batches(rows, 64))
        assert set(calls) == {"norm", "rotary"}
        assert_equal(ours, reference)


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> Any:
        return outer[0] * 1.01


def _slightly_off(module: Any, x: Tensor) -> Tensor:
    return norm(module, x) * 1.01


def _wrong_backward(module: Any, x: Tensor) -> Tensor:
    return norm(module, _WrongBackward.apply(x))  # type: ignore[no-untyped-call]


def _breaks(module: Any, x: Tensor) -> Tensor:
    raise KeyError("PassManager::run failed")


@pytest.mark.parametrize(
    ("kernel", "says"),
    [(_slightly_off, "differ by"), (_wrong_backward, "differ by"), (_breaks, "KeyError: 'PassManager::run failed'")],
)
def test_a_kernel_that_computes_something_else_or_breaks_is_left_out(monkeypatch: pytest.MonkeyPatch, kernel: Kernel, says: str) -> None:
    install(monkeypatch, kernel)
    changes, reason = kernels_differ(with_liger())
    assert changes == {"liger": False}
    assert "Liger's kernels are left out" in reason and says in reason
    assert modeling_qwen2.apply_rotary_pos_emb is OWN_ROTARY


def test_wrong_rotary_positions_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, rotary=lambda q, k, cos, sin, **_: OWN_ROTARY(q, k, sin, cos))
    assert kernels_differ(with_liger())[0] == {"liger": False}


def test_an_architecture_without_kernels_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    changes, reason = kernels_differ(with_liger("granite"))
    assert changes == {"liger": False} and "none for this architecture" in reason


def test_a_package_half_applied_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    module: Any = sys.modules["liger_kernel.transformers.monkey_patch"]
    whole = module._apply_liger_kernel_to_instance

    def half(**named: Any) -> None:
        whole(**named)
        raise AttributeError("Qwen2Model has no attribute 'norms'")

    module._apply_liger_kernel_to_instance = half
    task = with_liger()
    assert "no attribute 'norms'" in task.liger.refused
    assert not any("forward" in vars(module) for module in task.base.modules() if "Norm" in type(module).__name__)


def test_it_is_chosen_where_a_gpu_has_it() -> None:
    config = Config.model_validate({"model": "tiny", "data": {"files": "rows.jsonl"}})
    plan = a_plan(precision="fp32")
    gpu = {"gpus": [{"vendor": "nvidia", "arch": "sm_90", "memory_bytes": 2**37}]}
    installed = {"packages": {"liger-kernel": "0.8.5"}}
    chosen = [settings_of(config, plan, machine, 1, 1, 1).liger for machine in ({}, installed, gpu, gpu | installed)]
    assert chosen == [False, False, False, True]


@pytest.mark.skipif(find_spec("liger_kernel") is not None, reason="liger-kernel is installed")
def test_a_run_that_asks_for_it_in_vain_says_so_and_finishes(config_of: Callable[..., Path], tmp_path: Path) -> None:
    config = config_of(train={"steps": 2, "effective_batch": 4, "liger": True})
    done = holdfast("train", config, "--run", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    (said,) = [event for event in events(tmp_path / "r", "setting_changed") if "liger" in event["what"]]
    assert said["what"] == "liger -> False" and "No module named 'liger_kernel'" in said["reason"]
    assert [row["step"] for row in lines(tmp_path / "r" / "steps.jsonl")] == [1, 2]


@pytest.mark.skipif(not (find_spec("liger_kernel") and find_spec("triton")), reason="liger-kernel and triton are not installed")
@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama", "mistral", "phi3", "gemma2", "gemma3"])
def test_ligers_own_kernels_interpreted(name: str) -> None:
    run_interpreted(Path(__file__).with_name("interpreted.py"), name)
