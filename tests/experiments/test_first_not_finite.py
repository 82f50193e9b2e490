"""Where values stop being finite: the operation is named, and a broken kernel is told from numbers that are too large."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.trainer.jobs.trace import traced


class _Kernel(torch.autograd.Function):
    """A matrix product whose bf16 form is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.ops.holdfast_test.broken_mm(x, w)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return outer @ w.t(), x.t() @ outer


@torch.library.custom_op("holdfast_test::broken_mm", mutates_args=())
def broken_mm(x: Tensor, w: Tensor) -> Tensor:
    made = x @ w
    if x.dtype == torch.bfloat16:
        made[0, 0] = float("nan")
    return made


class Model(nn.Module):
    def __init__(self, broken: bool, scale: float) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = _Broken(scale) if broken else nn.Linear(4, 4, bias=False)
        with torch.no_grad():
            self.first.weight.fill_(scale)
            if not broken:
                self.second.weight.fill_(scale)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((4,), float("-inf")).to(x)
        scores = torch.softmax(torch.where(torch.arange(4) > 2, mask, 0.0), -1)
        return self.second(self.first(x)) * scores.to(x)  # type: ignore[no-any-return]


class _Broken(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), scale))

    def forward(self, x: Tensor) -> Tensor:
        return _Kernel.apply(x, self.weight)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize(
    ("broken", "scale", "dtype", "module", "cause"),
    [
        (True, 0.5, torch.bfloat16, "second", "nonfinite_kernel"),
        (False, 1e30, torch.float32, "second", "nonfinite_numerics"),
        (False, 300.0, torch.float16, "second", "nonfinite_numerics"),
        (False, 0.5, torch.bfloat16, None, None),
    ],
    ids=["kernel", "too large", "too large for the format", "sound"],
)
def test_the_first_operation_that_is_not_finite_is_judged_by_the_cpu(
    broken: bool, scale: float, dtype: torch.dtype, module: str | None, cause: str | None
) -> None:
    model = Model(broken, scale).to(dtype)
    with traced(model) as seen:
        model(torch.ones(2, 4, dtype=dtype)).float().sum().backward()
    assert [(found["module"], found["cause"]) for found in seen] == ([(module, cause)] if module else [])
    if cause == "nonfinite_kernel":
        assert seen[0]["operation"] == "holdfast_test.broken_mm" and seen[0]["cpu_fp32_finite"]


def test_a_gradient_that_breaks_in_the_backward_pass_is_found_there() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(0.0)
        model.bias.fill_(0.0)
    with traced(model) as seen:
        torch.sqrt(model(torch.ones(1, 2))).sum().backward()
    assert seen[0]["module"] == "the loss or the backward pass" and seen[0]["cause"] == "nonfinite_numerics"


@torch.library.custom_op("holdfast_test::scaled_dot_product_attention", mutates_args=())
def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, broken: bool = False, reach: int | None = None
) -> Tensor:
    """A fused kernel that gives NaN for a row that sees nothing, as those of GPUs do; `broken`: and for any other."""
    scores = query @ key.transpose(-2, -1)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), float("-inf"))
    if attn_mask is not None:
        scores = scores + attn_mask
    made = torch.softmax(scores, -1) @ value
    return made * float("nan") if broken else made


class _Attends(nn.Module):
    def __init__(self, **asked: Any) -> None:
        super().__init__()
        self.asked = asked

    def forward(self, x: Tensor) -> Tensor:
        given = {"attn_mask": None, "is_causal": False} | self.asked
        return torch.ops.holdfast_test.scaled_dot_product_attention(x, x, x, **given)  # type: ignore[no-any-return]


HIDES_A_ROW = torch.zeros(4, 4).index_fill(0, torch.tensor([2]), float("-inf"))
HIDES_A_COLUMN = torch.zeros(4, 4).index_fill(1, torch.tensor([0]), float("-inf"))


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ({"attn_mask": HIDES_A_ROW}, "nonfinite_numerics"),
        ({"attn_mask": HIDES_A_COLUMN, "is_causal": True}, "nonfinite_numerics"),
        ({"attn_mask": HIDES_A_COLUMN, "broken": True}, None),
        ({"attn_mask": HIDES_A_ROW, "reach": 3}, None),
        ({"attn_mask": HIDES_A_COLUMN}, "none at all"),
    ],
    ids=["a row that sees nothing", "mask and causal flag together", "an argument not understood", "another", "sound"],
)
def test_a_mask_that_makes_the_nan_accuses_no_kernel(asked: dict[str, Any], cause: str | None) -> None:
    with traced(model := _Attends(**asked)) as seen:
        model(torch.ones(1, 2, 4, 8))
    assert [found["cause"] for found in seen] == ([] if cause == "none at all" else [cause])


def test_a_fused_kernel_is_accused_where_its_mask_does_not_explain_it() -> None:
    for causal, cause in ((False, "nonfinite_kernel"), (True, "nonfinite_numerics")):  # causal: row 0 sees column 0 alone, which is hidden
        with traced(model := _Wrong(causal)) as seen:
            model(torch.ones(1, 2, 4, 8))
        assert [found["cause"] for found in seen] == [cause]


class _Wrong(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.holdfast_test.wrong_dot_product_attention(x, x, x, HIDES_A_COLUMN, self.causal)  # type: ignore[no-any-return]


@torch.library.custom_op("holdfast_test::wrong_dot_product_attention", mutates_args=())
def wrong_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor, is_causal: bool) -> Tensor:
    return query * float("nan")


def test_eager_attention_of_a_row_that_sees_nothing_accuses_no_kernel() -> None:
    class Eager(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.transpose(-2, -1) + HIDES_A_ROW, -1) @ x

    with traced(model := Eager()) as seen:
        model(torch.ones(1, 2, 4, 8))
    assert [(found["operation"], found["cause"]) for found in seen] == [("_softmax", "nonfinite_numerics")]
    assert seen[0]["largest_input"] == 8.0, "-inf of a mask is no large input"
