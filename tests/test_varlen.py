"""All sequences of a packed row in one attention kernel, as torch has it for GPUs: called as it wants to be, and given up where it fails.

The kernel does not run on a CPU. In its place stands a reference of what torch documents: packed [tokens, heads, size], bounds of the
sequences, a window (left, right) in which -1 is no bound, grouped heads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.trainer import attention
from holdfast.trainer.proof import disproof
from test_mixed import apart
from test_packing import ARCHITECTURES, LENGTHS, gradients, one_by_one, task_of

Kernel = Callable[..., Tensor]
CALLS: list[tuple[int, ...]] = []


def kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Tensor,
    ends_k: Tensor,
    longest_q: int,
    longest_k: int,
    *,
    scale: float,
    window_size: Any,
    enable_gqa: bool,
) -> Tensor:
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16 and ends_q.dtype == torch.int32
    assert enable_gqa == (q.shape[1] != k.shape[1]) and all(tensor.is_contiguous() for tensor in (q, k, v))
    sizes = torch.diff(ends_q).tolist()
    assert longest_q == longest_k == max(sizes) and torch.equal(ends_q, ends_k)
    CALLS.append(tuple(sizes))
    out = []
    for parts in zip(*(torch.split(tensor.float(), sizes) for tensor in (q, k, v)), strict=True):
        one_q, one_k, one_v = (part.transpose(0, 1) for part in parts)
        if enable_gqa:
            one_k, one_v = (part.repeat_interleave(len(one_q) // len(part), 0) for part in (one_k, one_v))
        place = torch.arange(one_q.shape[1])
        ahead = place[None, :] - place[:, None]
        left, right = window_size
        seen = (ahead <= right if right >= 0 else ahead < len(place)) & (ahead >= -left if left >= 0 else ahead > -len(place))
        scores = (one_q @ one_k.transpose(1, 2) * scale).masked_fill(~seen, float("-inf"))
        out.append((scores.softmax(-1) @ one_v).transpose(0, 1))
    return torch.cat(out).to(q.dtype)


def _raises(*_given: Any, **_named: Any) -> Tensor:
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def _leaks(q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, *sizes: int, **named: Any) -> Tensor:
    whole = torch.tensor([0, len(q)], dtype=torch.int32)
    return kernel(q, k, v, whole, whole, len(q), len(q), **named)


@pytest.fixture
def task_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel, str], Any]:
    def make(used: Kernel, name: str) -> Any:
        CALLS.clear()
        monkeypatch.setattr(attention, "_varlen", lambda: used)
        monkeypatch.setattr(attention, "_arithmetic", lambda _value: torch.bfloat16)
        return task_of(ARCHITECTURES[name](), mixed=True, varlen=True)

    return make


@pytest.mark.parametrize("name", ["qwen2", "mistral", "gemma3"])
def test_it_gives_the_gradients_of_samples_one_by_one(task_with: Callable[[Kernel, str], Any], name: str) -> None:
    task = task_with(kernel, name)
    assert disproof(task) == ({}, "")
    CALLS.clear()
    loss, grads = gradients(task, task.batches(list(range(len(LENGTHS))), 64))
    assert len(CALLS) == 4 and sorted(size for call in set(CALLS) for size in call) == sorted(LENGTHS), "once a layer and row"
    wanted, reference = one_by_one(ARCHITECTURES[name]())
    assert loss == pytest.approx(wanted, rel=5e-3)
    assert apart(grads, reference) < 5e-3


@pytest.mark.parametrize(("used", "says"), [(_raises, "only supports Ampere"), (_leaks, "see each other")])
def test_where_it_fails_samples_still_share_a_row(task_with: Callable[[Kernel, str], Any], used: Kernel, says: str) -> None:
    changes, reason = disproof(task_with(used, "llama"))
    assert changes == {"varlen": False}
    assert says in reason and "each attends by itself" in reason
    assert disproof(task_of(ARCHITECTURES["llama"](), mixed=True)) == ({}, "")


def test_soft_capped_scores_do_without_it(task_with: Callable[[Kernel, str], Any]) -> None:
    assert disproof(task_with(_raises, "gemma2")) == ({}, "")


def test_this_torch_has_a_kernel_that_takes_what_it_is_given() -> None:
    found = attention._varlen()
    if found is None:
        pytest.skip("torch before 2.11")
    wanted = [name for name, parameter in inspect.signature(found).parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert wanted == ["query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k"]
