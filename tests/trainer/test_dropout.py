"""Dropout masks: fair, and a function of (seed, step, module, sample, position, feature) alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.trainer.model.layers.dropout import StatelessDropout, StepContext, make_stateless


def mask(p: float, step: int, samples: list[int], width: int = 50, features: int = 64, name: str = "m", seed: int = 0) -> torch.Tensor:
    context = StepContext(seed)
    positions = torch.arange(width).expand(len(samples), width)
    context.enter(step, torch.tensor(samples)[:, None].expand(len(samples), width), positions)
    module = StatelessDropout(p, name, context).train()
    assert context.rows is not None
    return module.keep(context.rows, features)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_each_element_is_dropped_with_probability_p(p: float) -> None:
    kept = mask(p, 3, list(range(40)))
    tolerance = 5 * (p * (1 - p) / kept.numel()) ** 0.5
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=tolerance)


def test_no_sample_position_or_feature_is_favoured() -> None:
    kept = mask(0.5, 3, list(range(64)), width=64, features=64).float()
    for axes in ((1, 2), (0, 2), (0, 1)):
        share = kept.mean(dim=axes)
        assert (share - 0.5).abs().max() < 6 * 0.5 / 64  # six standard deviations of a mean of 4096


def test_neighbours_are_not_correlated() -> None:
    kept = mask(0.5, 3, list(range(64)), width=64, features=64).float() - 0.5
    for a, b in ((kept[1:], kept[:-1]), (kept[:, 1:], kept[:, :-1]), (kept[..., 1:], kept[..., :-1])):
        assert abs((a * b).mean().item()) * 4 < 6 / a.numel() ** 0.5


def test_a_mask_belongs_to_the_sample_not_to_its_place_in_a_batch() -> None:
    together = mask(0.3, 5, [11, 7, 42])
    assert torch.equal(mask(0.3, 5, [42])[0], together[2])
    assert torch.equal(mask(0.3, 5, [7], width=20)[0], together[1][:20])


@pytest.mark.parametrize("change", [{"step": 6}, {"samples": [8]}, {"name": "other"}, {"seed": 1}], ids=str)
def test_anything_else_draws_another_mask(change: dict[str, object]) -> None:
    usual: dict[str, object] = {"p": 0.3, "step": 5, "samples": [7]}
    agreement = (mask(**usual) == mask(**(usual | change))).float().mean().item()  # type: ignore[arg-type]
    chance = 0.7 * 0.7 + 0.3 * 0.3
    assert agreement == pytest.approx(chance, abs=5 * (chance * (1 - chance) / 3200) ** 0.5)


def test_every_dropout_of_a_model_is_replaced_and_its_scale_kept() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.25), nn.ModuleDict({"inner": nn.Dropout(0.5)}))
    context = StepContext(0)
    assert make_stateless(model, context) == ["1", "2.inner"]
    context.enter(1, torch.zeros(4, 6, dtype=torch.int64), torch.arange(6).expand(4, 6))
    out = model[1].train()(torch.ones(4, 6, 8))
    assert out.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert torch.equal(model[1].eval()(torch.ones(4, 6, 8)), torch.ones(4, 6, 8))


def test_an_input_that_does_not_follow_the_tokens_is_refused() -> None:
    context = StepContext(0)
    context.enter(1, torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="does not follow"):
        StatelessDropout(0.1, "m", context).train()(torch.ones(5, 4))
