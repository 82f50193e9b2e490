"""All sequences of a packed row in one attention kernel, of a package or of torch: called as it wants to be, and given up where it fails.

The kernels do not run on a CPU. In their places stand references of what is documented: packed [tokens, heads, size], bounds of the
sequences, a window (left, right) in which -1 is no bound, grouped heads; for torch's private operation, forward and backward.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.trainer.model import attention
from holdfast.trainer.model.attention import Kernel
from holdfast.trainer.tasks.text.proof import disproof
from support.architectures import ARCHITECTURES, LENGTHS, assert_equal_in_16_bits, gradients, one_by_one, task_of
from support.varlen import CALLS, of_torch, seen


def of_package(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    assert causal and not dropout_p and softmax_scale is not None
    bounds, grouped = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k), q.shape[1] != k.shape[1]
    reach = (window_size[0], 0)  # causal: nothing ahead
    return of_torch(q, k, v, *bounds, scale=softmax_scale, window_size=reach, enable_gqa=grouped, softcap=softcap)


def within_forward(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, ends_k: Tensor, longest: int, longest_k: int, drop: float, causal: bool, debug: bool,
    *, scale: float, window_size_left: int | None = None, window_size_right: int | None = None, **_other: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert not drop and not debug and causal == (window_size_left is None)
    reach = (-1, 0) if causal else (window_size_left, window_size_right)
    grouped = q.shape[1] != k.shape[1]
    out = of_torch(q, k, v, ends, ends_k, longest, longest_k, scale=scale, window_size=reach, enable_gqa=grouped)
    return out, q.new_zeros(q.shape[1], len(q), dtype=torch.float32), torch.zeros(2, dtype=torch.uint64), torch.empty(0), torch.empty(0)


def within_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, _out: Tensor, _sums: Tensor, ends: Tensor, *_given: Any,
    scale: float, window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    found: list[list[Tensor]] = [[], [], []]
    groups = q.shape[1] // k.shape[1]
    for parts in zip(*(torch.split(tensor.float(), torch.diff(ends).tolist()) for tensor in (grad, q, k, v)), strict=True):
        slope, one_q, one_k, one_v = (part.transpose(0, 1) for part in parts)
        one_k, one_v = (part.repeat_interleave(groups, 0) for part in (one_k, one_v))
        mask = ~seen(one_q.shape[1], -1 if window_size_left is None else window_size_left, 0)
        weights = (one_q @ one_k.transpose(1, 2) * scale).masked_fill(mask, float("-inf")).softmax(-1)
        outer = slope @ one_v.transpose(1, 2)
        inner = weights * (outer - (outer * weights).sum(-1, keepdim=True)) * scale
        for at, part in enumerate((inner @ one_k, inner.transpose(1, 2) @ one_q, weights.transpose(1, 2) @ slope)):
            part = part if at == 0 else part.view(-1, groups, *part.shape[1:]).sum(1)
            found[at].append(part.transpose(0, 1))
    return tuple(torch.cat(parts).to(q.dtype) for parts in found)


def _raises(*_given: Any, **_named: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def _leaks(q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, *sizes: int, **named: Any) -> Tensor:
    whole = torch.tensor([0, len(q)], dtype=torch.int32)
    return of_torch(q, k, v, whole, whole, len(q), len(q), **named)


def _forgets_queries(q: Tensor, *given: Any, **named: Any) -> Tensor:
    """Forward as it should be; no gradient reaches the queries."""
    return of_torch(q.detach(), *given, **named)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Callable[[], Kernel | None]]]:
    """Each kernel by its source, with a reference in its place; attention is in bf16, as on a card."""
    monkeypatch.setattr(attention, "_arithmetic", lambda _value: torch.bfloat16)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=of_package))
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    monkeypatch.setattr(varlen, "varlen_attn", of_torch)
    private = torch.library.Library("aten", "IMPL")
    private.impl("_flash_attention_forward", within_forward, "CPU")
    private.impl("_flash_attention_backward", within_backward, "CPU")
    CALLS.clear()
    yield {"package": attention._of_package, "torch": attention._of_torch, "within": attention._of_torch_within}
    private._destroy()


@pytest.mark.parametrize("name", ["qwen2", "mistral", "gemma3"])
@pytest.mark.parametrize("source", ["package", "torch", "within"])
def test_it_gives_the_gradients_of_samples_one_by_one(kernels: dict[str, Any], source: str, name: str) -> None:
    task = task_of(ARCHITECTURES[name](), mixed=True, kernel=kernels[source]())
    assert disproof(task) == ({}, "")
    CALLS.clear()
    found = gradients(task, task.batches(list(range(len(LENGTHS))), 64))
    assert len(CALLS) == 4 and sorted(size for call in set(CALLS) for size in call) == sorted(LENGTHS), "once a layer and row"
    assert_equal_in_16_bits(found, one_by_one(ARCHITECTURES[name]()))


@pytest.fixture
def wrong(kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Kernel]:
    """The kernel of torch as another one does it."""

    def make(used: Any) -> Kernel:
        monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", used)
        monkeypatch.setattr(attention, "signature", lambda _: SimpleNamespace(parameters={"window_size", "enable_gqa", "scale"}))
        found: Kernel = kernels["torch"]()
        return found

    return make


@pytest.mark.parametrize(("used", "says"), [(_raises, "only supports Ampere"), (_leaks, "see each other")])
def test_where_it_fails_samples_still_share_a_row(wrong: Callable[[Any], Kernel], used: Any, says: str) -> None:
    changes, reason = disproof(task_of(ARCHITECTURES["llama"](), mixed=True, kernel=wrong(used)))
    assert changes == {"varlen": False}
    assert says in reason and "each attends by itself" in reason
    assert disproof(task_of(ARCHITECTURES["llama"](), mixed=True)) == ({}, "")


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_backward_pass_that_is_wrong_is_found_out(wrong: Callable[[Any], Kernel], name: str) -> None:
    changes, reason = disproof(task_of(ARCHITECTURES[name](), mixed=True, kernel=wrong(_forgets_queries)))
    assert changes == {"varlen": False}
    assert "gradients of samples that share a row are wrong" in reason and "q_proj" in reason


def test_soft_capped_scores_take_the_kernel_that_knows_them(kernels: dict[str, Any]) -> None:
    assert disproof(task_of(ARCHITECTURES["gemma2"](), mixed=True, kernel=kernels["torch"]())) == ({}, "")
    assert not CALLS
    task = task_of(ARCHITECTURES["gemma2"](), mixed=True, kernel=kernels["package"]())
    assert disproof(task) == ({}, "")
    assert CALLS


def test_the_package_comes_first_and_an_old_one_not_at_all(kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sources = []
    for lost in ("_of_package", "_of_torch", "_of_torch_within", ""):
        found = attention.best_kernel()
        sources.append(found.source if found else None)
        monkeypatch.setattr(attention, lost, lambda: None, raising=False)
    assert sources == ["flash-attn", "torch", "torch's private one", None]
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(flash_attn_varlen_func=lambda q, k, v, window_size: q))
    assert kernels["package"]() is None


def test_this_torch_has_kernels_that_take_what_they_are_given() -> None:
    assert attention._of_torch_within() is not None, "the private operation has other arguments now"
    if attention._of_torch() is None:
        pytest.skip("torch before 2.11")
    from torch.nn.attention.varlen import varlen_attn

    wanted = [name for name, parameter in inspect.signature(varlen_attn).parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert wanted == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
