"""Settings that are usual for a model's size, the number of rows and what is trained, each with its reason. Pure.

Where they are from: learning rates of LoRA 2e-4 up to 13B and 1e-4 above (QLoRA, arXiv 2305.14314), about ten times those of full
fine-tuning, and rank as the rows need it (LoRA Without Regret, Thinking Machines 2025); preferences near 5e-6 (DPO with LoRA in TRL's
and Zephyr's recipes).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.base.units import in_millions
from holdfast.config.adapter_kinds import KINDS
from holdfast.config.config import Config
from holdfast.config.objectives import OBJECTIVES

_FAR_OFF = 10.0  # times the usual learning rate
_STEPS = 100  # that a run should have at least, where rows allow it
_ROWS_OF_RANK = ((2_000, 8), (50_000, 16))
_ROWS_OF_EPOCHS = ((500, 5), (5_000, 3), (50_000, 2))
_ROWS_OF_BATCH = ((400, 4), (2_000, 8), (20_000, 16))


class Advice(NamedTuple):
    """A key of the config, its usual value and why."""

    key: str
    value: float | int | str
    reason: str


def usual_lr(params: int | None, adapter: str, objective: str = "sft") -> float:
    """Return the usual peak learning rate. params: of the whole model; None: unknown, taken for a few billion."""
    billions = (params or 3_000_000_000) / 1e9
    kind, rate = KINDS[adapter], OBJECTIVES[objective].lr
    if rate is not None:
        return rate / 10 if kind.own_weights else rate
    if kind.own_weights:
        return 1e-4 if billions < 0.3 else 5e-5 if billions < 1 else 2e-5 if billions < 10 else 1e-5
    if kind.lr is not None:
        return kind.lr
    return 2e-3 if billions < 0.05 else 1e-3 if billions < 0.3 else 4e-4 if billions < 1 else 2e-4 if billions < 14 else 1e-4


def advise(
    params: int | None, rows: int | None, adapter: str = "lora", objective: str = "sft", passes: int | None = None
) -> Iterator[Advice]:
    """Yield the usual settings for such a run. params: of the whole model; rows: to train on; None: unknown; passes: asked for."""
    size = f"{in_millions(params)} parameters" if params else "a model of unknown size"
    kind = KINDS[adapter]
    what = f"{adapter} on" if not kind.own_weights else "layers of" if kind.frozen else "all weights"
    yield Advice("train.lr", usual_lr(params, adapter, objective), f"usual for {what} {size}, objective {objective}")
    count = rows or 5_000
    told = f"{rows:,} rows" if rows else "the number of rows is unknown, some thousand taken"
    batch = _by(count, _ROWS_OF_BATCH, 32)
    epochs = passes or (1 if objective != "sft" else _by(count, _ROWS_OF_EPOCHS, 1))
    steps = math.ceil(count * epochs / batch)
    yield Advice("train.epochs", epochs, f"{told}: {'fewer need more passes' if epochs > 1 else 'one pass is enough'}")
    yield Advice(
        "train.effective_batch", batch, f"about {steps:,} steps; LoRA loses with large batches, fewer than {_STEPS} steps learn little"
    )
    share = 0.03 if steps > 300 else 0.1
    warm = max(1, round(share * steps))
    yield Advice("train.warmup", share, f"{warm} of about {steps:,} steps")
    if "r" in kind.keys:
        rank = _by(count, _ROWS_OF_RANK, 32)
        yield Advice("adapter.r", rank, f"{told}: rank follows what there is to learn")
        yield Advice("adapter.alpha", 2 * rank, "twice the rank, so that train.lr fits any rank")
        few = count < 2_000 and epochs > 1
        yield Advice("adapter.dropout", 0.05 if few else 0.0, "few rows that are seen often" if few else "no row is seen often")


def _by(count: int, table: tuple[tuple[int, int], ...], otherwise: int) -> int:
    return next((value for most, value in table if count < most), otherwise)


def far_off(config: Config, params: int | None) -> Iterator[str]:
    """Yield a sentence for each setting of a language model's config that is far from the usual one."""
    train, adapter = config.train, config.adapter
    usual = usual_lr(params, adapter.type, train.objective)
    if params and train.optimizer in ("adamw", "adamw8bit", "paged", "schedule_free"):
        ratio = train.lr / usual
        if ratio >= _FAR_OFF or ratio <= 1 / _FAR_OFF:
            more = f"{ratio:.0f} times" if ratio > 1 else f"a {1 / ratio:.0f}th of"
            yield f"train.lr {train.lr:g} is {more} the {usual:g} usual for {adapter.type} and this size: try train.lr={usual:g}"
    scale = adapter.alpha / adapter.r
    if adapter.type in ("lora", "dora") and not 0.2 <= scale <= 16:
        yield f"adapter.alpha {adapter.alpha:g} is {scale:.2g} times the rank; usual is twice: adapter.alpha={2 * adapter.r}"
    if train.epochs and train.epochs > 20:
        yield f"train.epochs {train.epochs:g}: rows seen that often are learned by heart; usual are 1 to 5, with evaluate.patience"
    if train.warmup and 0.5 <= train.warmup < 1:
        yield f"train.warmup {train.warmup:g} is most of the run; usual is 0.03 to 0.1"
