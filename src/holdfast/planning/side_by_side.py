"""Whether parts of a step are computed at the same time on a CPU's cores, and how. Follows from the config and the rows alone. Pure.

One pass has thousands of short operations, which gain little from a second core; two passes, each on a core of its own, gain nearly all
of it (`benchmarks/results/engine.md`). No clock decides: two runs of one config are to have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from holdfast.base.units import counted, gib
from holdfast.config.config import Config
from holdfast.config.objectives import either
from holdfast.config.settings import PartialSettings, Settings
from holdfast.run.types import LOGITS_AT_ONCE

_LOGIT = 8  # bytes: a value, and what it is rounded from or to
_MOST = 4  # parts at the same time: they share one interpreter
_HEAVY = 1 << 33  # parameters times tokens of a mean step; below it the interpreter's own time is too large a share
_KINDS = ("lora", "rslora", "dora")
_OBJECTIVES = ("sft", "dpo", "orpo", "simpo")
_WIDE = ("auto", "half", "fp32")
_FROZEN = (*_WIDE, "nf4", "int8")
# adapter, objective and frozen matrices of runs that were measured to become faster; others do so where they are asked to
_FASTER = {
    *product(("lora", "rslora"), ("sft",), (*_WIDE, "nf4")),
    *product(("lora", "rslora"), ("dpo",), _WIDE),
    *product(("dora",), ("sft",), _WIDE),
}


@dataclass(frozen=True)
class StepSize:
    """Tokens: of the longest row, of the largest step, of a mean step; parameters of the model."""

    longest: int
    largest: int
    mean: float
    parameters: int


def side_by_side(config: Config, settings: Settings, size: StepSize) -> tuple[PartialSettings, str]:
    """Return the changes to a new run's settings, and why. Empty where a step is computed whole; a reason where more was asked for."""
    train, threads = config.train, settings.threads
    asked = train.parts_at_once if isinstance(train.parts_at_once, int) else None
    if train.parts_at_once == "off":
        return {}, ""
    if against := _against(config, settings):
        return {}, f"train.parts_at_once is {asked}, and is left out: {against}" if asked else ""
    if asked is None and not _gains(config, settings, size):
        return {}, ""
    parts = asked or _power_below(min(threads, _MOST, train.effective_batch // 2))
    while (budget := _budget(settings.micro_batch_tokens, size, parts)) is None:
        parts //= 2
    if parts == 1:
        return {}, f"train.parts_at_once is {asked}, and is left out: two of the longest rows do not fit at the same time" if asked else ""
    each = max(1, threads // parts)
    changes: PartialSettings = {"shards": parts, "at_once": parts, "part_threads": each}
    if budget != settings.micro_batch_tokens:
        changes["micro_batch_tokens"] = budget
    told = f"{parts} parts of each step at the same time, each in {counted(each, 'thread')} of {threads}"
    return changes, f"{told}: short operations gain little from more threads, and passes do not wait for each other"


def parts_ahead(config: Config, settings: Settings, size: StepSize, peak_bytes: int) -> str:
    """Return a plan's sentence about parts of a step; empty where a step is computed whole. peak_bytes: of one process."""
    changes, _ = side_by_side(config, settings, size)
    if not changes:
        return ""
    parts, asked = changes["at_once"], config.train.parts_in
    told = f"{parts} parts of each step are computed at the same time"
    if asked == "threads":
        return f"{told}, in threads of one process"
    need = f"{parts} processes, which need about {parts} x {gib(peak_bytes)}"
    return f"{told}, in {need}" if asked == "processes" else f"{told}, in {need}, where that much is free at the start; else in threads"


def more_logits(config: Config, settings: Settings, at_once: int, largest: int, vocabulary: int) -> int:
    """Return the bytes of logits that parts in threads of one process have beyond a whole step, of `largest` tokens: a chunk each."""
    if at_once == 1 or config.train.parts_in != "threads":
        return 0
    tokens, rows = min(largest, settings.micro_batch_tokens), max(1, LOGITS_AT_ONCE // vocabulary)
    return _LOGIT * vocabulary * (min(tokens, at_once * rows) - min(tokens, rows))


def _gains(config: Config, settings: Settings, size: StepSize) -> bool:
    """Return whether such a run, with its settings and step size, was measured to become faster."""
    train = config.train
    measured = (config.adapter.type, train.objective, settings.frozen) in _FASTER
    return measured and settings.threads > 1 and size.mean * size.parameters >= _HEAVY and train.micro_batch_tokens is None


def _against(config: Config, settings: Settings) -> str:
    """Return why parts cannot be computed at the same time; empty where they can."""
    train, adapter = config.train, config.adapter
    if settings.device != "cpu":
        return "that is for runs on a CPU"
    if train.objective not in _OBJECTIVES or adapter.type not in _KINDS or adapter.modules_to_save or train.neftune:
        told = f"{either(list(_KINDS))} adapters with train.objective {either(list(_OBJECTIVES))}"
        return f"that is for {told}, without modules_to_save and neftune"
    if settings.frozen not in _FROZEN:
        return f"the frozen matrices are held in {settings.frozen}"
    return "the step is cut into parts already (train.reduction_parts, train.ranks)" if settings.shards > 1 else ""


def _budget(whole: int, size: StepSize, parts: int) -> int | None:
    """Return the tokens of a part's micro-batches, so that at most `whole` go through the model at once; None where that cannot be."""
    each = whole if size.largest <= whole else max(size.longest, whole // parts)
    return each if parts == 1 or min(parts * each, size.largest) <= whole else None


def _power_below(most: int) -> int:
    """Return the largest power of two that is at most `most`."""
    return 1 << max(1, most).bit_length() - 1
