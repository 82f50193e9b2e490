"""Memory pressure: where a micro-batch does not fit, make it smaller and go on with the same step. Saves nothing.

What is learned is an entry of the settings timeline, on disk before it is used: a run that is killed and resumed, or replayed, splits
its micro-batches as this one did.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import TypeVar

import torch

from holdfast.config.settings import PartialSettings
from holdfast.machine.host_memory import host_memory
from holdfast.run.timeline import Entry
from holdfast.trainer.common.device import own_gpu, release
from holdfast.trainer.common.oom import OutOfMemory, tag_out_of_memory
from holdfast.trainer.distributed.rank import ALONE, Rank, parts_of
from holdfast.trainer.step.step import Announce, Gradients
from holdfast.trainer.step.training_state import TrainingState

Result = TypeVar("Result")

_LOOK_EVERY = 16  # steps between two looks at the host's memory
_LOW_SHARE = 0.05  # of the host's memory, still available
_OUR_SHARE = 0.2  # of the host's memory: below it, smaller micro-batches would not help
_SWAP_GROWTH_BYTES = 256 << 20
_FRAGMENTS_SHARE = 0.1  # of what the device's allocator holds, never in use at once: it is short of blocks that fit, not of memory
_HOST_SIDE_BYTES = 512 << 20  # of a trainer beside its device: libraries and interpreter (340 MiB measured on the CPU), half of it again


class BeginAgain(Exception):
    """Memory ran out in what others wait in. What helps, if known, is on the timeline for the next attempt. The message says all."""


def compute_within_memory(training: TrainingState, step: int, samples: list[int], announce: Announce) -> Gradients:
    """Compute the gradients of a step. Where a micro-batch does not fit, the step begins again with smaller ones."""

    def compute() -> Gradients:
        return training.compute(step, samples, announce, lambda: training.prepare(step + 1))

    return within_memory(training, step, compute)


def within_memory(training: TrainingState, step: int, work: Callable[[], Result]) -> Result:
    """Do `work` under the settings of `step`, again with smaller micro-batches while it does not fit.

    They stay so from `step` on. Raises OutOfMemory when a single sample does not fit and the task has no lighter way
    left, or when something that is no micro-batch does not fit; BeginAgain where each pass is one of all ranks.
    """
    while True:
        try:
            return once_more(f"step {step}", work, training.rank)
        except OutOfMemory as error:
            if error.batch is None:
                raise
            full = error.with_traceback(None)  # the frames hold the tensors that did not fit
            full.__context__ = None
        training.optimizer.clear()
        release()
        _make_smaller(training, step, full)
        if training.rank.together:
            raise BeginAgain(f"{training.job.timeline[-1].reason}; the other ranks are in the middle of a pass, so all begin again")


def once_more(what: str, work: Callable[[], Result], rank: Rank = ALONE) -> Result:
    """Do `work`, which may be begun anew; if memory runs out, once more after all that is kept for later was given back.

    A micro-batch that does not fit is passed on at once: it wants to be smaller. Raises OutOfMemory, which says `what` did not fit, and
    BeginAgain where other ranks may be in the middle of it.
    """
    try:
        with tag_out_of_memory(None, what):
            return work()
    except OutOfMemory as error:
        if error.batch is not None:
            raise
        error.with_traceback(None).__context__ = None  # what they hold is in the way
        if rank.together:
            raise BeginAgain(f"{error.what} does not fit into memory: {error}; the other ranks wait for it, so all begin again") from None
    release()
    with tag_out_of_memory(None, what):
        return work()


def _make_smaller(training: TrainingState, step: int, full: OutOfMemory) -> None:
    """Halve the micro-batch that did not fit; for a single sample use the lighter settings that the task may have."""
    assert full.batch is not None
    batch = full.batch
    reason = f"out of memory at step {step} with {len(batch.numbers)} samples, {batch.size} tokens: {full}"
    if training.job.settings(step).parts_of_each(training.rank.size) > 1:  # costs no bit
        change({"at_once": 1}, training, step, reason, training.rank.together)
    elif len(batch.numbers) > 1:
        change({"micro_batch_tokens": batch.half}, training, step, reason, training.rank.together)
    elif lighter := training.task.lighter(training.job.settings(step)):
        change(lighter, training, step, reason, training.rank.together)
        training.task.adopt(lighter)
    else:
        raise full


def change(settings: PartialSettings, training: TrainingState, step: int, reason: str, alone: bool = False) -> None:
    """Put changed settings on the timeline, from `step` on, and tell. alone: the other ranks do not hear of it here."""
    job, before = training.job, training.job.settings(step)
    job.amend(Entry(step, settings, reason), alone)
    what = ", ".join(f"{name} {getattr(before, name)} -> {value}" for name, value in settings.items())
    job.event("setting_changed", what=f"{what} from step {step} on", reason=reason)


def rehearse(training: TrainingState, announce: Announce) -> None:
    """Try the run's largest step first, so that too little memory shows in its first seconds. Moves no weight."""
    settings, data = training.job.settings(1), training.task.data
    step, _ = data.table.largest_step(data.sizes, settings.samples)
    samples = data.table.samples(step, settings.samples)
    parts = parts_of(samples, lambda: data.sizes, max(settings.shards, training.rank.size))
    batches = [batch for part in parts for batch in training.task.batches(part, settings.micro_batch_tokens)]
    largest = list(max(batches, key=lambda batch: batch.tokens).numbers)
    within_memory(training, 1, lambda: training.rank.agreed(lambda: training.compute_alone(1, largest, announce)))
    training.optimizer.clear()


class MemoryWatch:
    """Looks at the host's memory, its swap and the device's allocator between steps, and makes micro-batches smaller before they fail.

    The allocator starts over in each step that runs out of memory, too. What that step taught is on the timeline, so only what comes in
    steps without such an entry counts, and nothing from before the watch began.
    """

    def __init__(self, training: TrainingState, read: Callable[[], dict[str, int]] | None = None) -> None:
        self.training = training
        self.read = read or host_memory
        self.swap_free = self.read().get("SwapFree")
        self.learned = len(training.job.timeline)
        self.retries = self._allocator().get("num_alloc_retries", 0)

    def look(self, step: int) -> None:
        """Check memory after `step` is committed; what it changes holds from the next step on."""
        if self.learned != len(self.training.job.timeline):
            self.learned, self.retries = len(self.training.job.timeline), self._allocator().get("num_alloc_retries", 0)
        if step % _LOOK_EVERY == 0 and (reason := self._reason_of_all(step)):
            release()
            budget, floor = self.training.job.settings(step + 1).micro_batch_tokens, self.training.longest
            if budget > floor:
                change({"micro_batch_tokens": max(floor, budget // 2)}, self.training, step + 1, reason)
            else:
                self.training.job.event("memory_low", step=step, reason=f"{reason}; micro-batches hold one sample each already")

    def _reason_of_all(self, step: int) -> str | None:
        """Return the reason of the first rank that has one, so that all ranks make their micro-batches smaller, or none."""
        told = self.training.rank.exchange({"reason": self._reason(step)})
        return next((one["reason"] for one in told if one["reason"]), None)

    def _allocator(self) -> dict[str, int]:
        """Return the statistics of the device's allocator; empty on a CPU."""
        if self.training.device.type != "cuda":
            return {}
        return {name: int(value) for name, value in torch.cuda.memory_stats(self.training.device).items()}

    def _reason(self, step: int) -> str | None:
        counts = self._allocator()
        more, self.retries = counts.get("num_alloc_retries", 0) - self.retries, counts.get("num_alloc_retries", 0)
        if more:
            reason = f"the device's allocator had to start over {more} times within {_LOOK_EVERY} steps"
            kept, used = (counts.get(f"{kind}_bytes.all.peak", 0) for kind in ("reserved", "allocated"))
            if kept - used <= _FRAGMENTS_SHARE * kept:
                return reason
            release()  # smaller micro-batches would leave as many holes
            told = f"{reason}; it held {kept >> 20:,} MiB, of which {used >> 20:,} were ever in use together"
            self.training.job.event("memory_fragmented", step=step, reason=told)
        now = self.read()
        total, available, swap = now.get("MemTotal"), now.get("MemAvailable"), now.get("SwapFree")
        if not total or available is None or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < _OUR_SHARE * total:
            return None
        if available < _LOW_SHARE * total:
            return f"the host has {available >> 20} MiB of {total >> 20} MiB left"
        if swap is not None and self.swap_free is not None and self.swap_free - swap > _SWAP_GROWTH_BYTES:
            grown, self.swap_free = self.swap_free - swap, swap
            return f"the host's swap grew by {grown >> 20} MiB"
        return None


def cap_memory(limit_bytes: int | None, shared: bool) -> None:
    """Let allocations beyond `limit_bytes` fail rather than freeze the machine: on the device, or of this process where there is none.

    shared: the device lives on main memory. Then the limit is for both: what the process itself needs is kept from the device.
    """
    if limit_bytes is None:
        return
    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(own_gpu()).total_memory
        of_device = max(0, limit_bytes - _HOST_SIDE_BYTES) if shared else limit_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, of_device / total), own_gpu())
        if not shared:
            return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard), hard))
