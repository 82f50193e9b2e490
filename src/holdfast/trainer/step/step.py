"""One step as a pure function: gradients of given samples at given weights, gate, update. Saves and reports nothing."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast.base.files import Json
from holdfast.trainer.common.batch import Batch
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.distributed.rank import ALONE, Rank, own_parts, parts_of
from holdfast.trainer.optim.optimizer import FlatOptimizer
from holdfast.trainer.parts.side_by_side import groups_in_tree
from holdfast.trainer.parts.threads import products_in
from holdfast.trainer.protocol.task import AnyTask

# Called before each micro-batch and before each backward pass, and when the gradients are complete (gate); the factor for the micro-batch's
# loss, or for its gradients.
Announce = Callable[[str, int, Batch], float]


@dataclass(frozen=True)
class Gradients:
    """What a step computed. loss: weighted mean over the step's labels; grad_norm: before clipping; both may be non-finite.

    measured: what was summed over labels beside the loss, by the names of Task.measures.
    seconds: of each rank, until its own gradients were there. scale: what the loss was multiplied by on the way; skipped: the gradients
    overflowed with it and are those without it, and the weights do not move.
    """

    loss: float
    grad_norm: float
    tokens: int
    labels: int
    measured: dict[str, float] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()
    scale: float = 1.0
    skipped: bool = False

    @property
    def finite(self) -> bool:
        """The gate: only a step whose loss and gradient norm are finite may move the weights."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def nothing() -> None:
    """Do nothing while a card is still busy with the step."""


def compute_gradients(
    task: AnyTask,
    optimizer: FlatOptimizer,
    step: int,
    samples: list[int],
    budget: int,
    announce: Announce,
    meanwhile: Callable[[], None] = nothing,
    rank: Rank = ALONE,
    shards: int = 1,
    scale: float = 1.0,
    at_once: int = 1,
    part_threads: int | None = None,
) -> Gradients:
    """Accumulate the gradient of the mean loss over all labels of `samples` into the parameters' `.grad`.

    Masks and order follow from (seed, step, samples) alone; `budget` (tokens per micro-batch) changes only rounding. Raises OutOfMemory,
    on all ranks alike, and PeerLost. shards: parts of the step whose gradients are added in one binary tree, whichever ranks compute them;
    1: a part for each rank, added as the backend does. scale: a power of two that the gradients have on the way alone. `meanwhile` is
    called when all has been asked of the device, before the step waits for it. at_once: of a rank's parts, how many are computed at the
    same time; part_threads: threads each is computed in.
    """
    in_tree = shards > 1
    rounds = task.step_hooks.rounds
    own = own_parts(rank, parts_of(samples, lambda: task.data.sizes, shards if in_tree else rank.size), apart=rounds)
    laid, every = rank.agreed(lambda: [task.batches(part, budget) for part in own], _count)
    if in_tree or rank.size > 1:
        task.share_step(samples, laid, rank)
    passes = [one["passes"] for one in every]
    labels, tokens = sum(one["labels"] for one in every), sum(one["tokens"] for one in every)
    divisor = math.fsum(one["divisor"] for one in every)
    torch.manual_seed(step)  # for whatever draws from the generator all the same

    def work() -> tuple[Tensor, float]:
        began = time.perf_counter()
        if rounds:
            found = _in_rounds(task, optimizer, step, laid, [one["each"] for one in every], divisor / scale, announce, rank)
        else:
            run_dummy_passes(rank, passes, lambda: _dummy_pass(task, step))
            with products_in(part_threads):
                if 1 < at_once <= len(laid):
                    found = groups_in_tree(task, optimizer, step, laid, divisor / scale, announce, at_once)
                else:
                    found = _in_tree(task, optimizer, step, laid, divisor / scale, announce)
        batches = [batch for part in laid for batch in part]
        if batches:
            with tag_out_of_memory(batches[-1]):
                announce("gate", len(batches) - 1, batches[-1])
                meanwhile()
        rank.settle()
        return found, time.perf_counter() - began

    (sums, _), every = rank.agreed(work, lambda done: {"seconds": done[1]})
    rank.sum_([sums] if rounds else [optimizer.gradient, sums], in_tree)
    sums = _over_rounds(sums) if rounds else sums
    if scale != 1.0:
        optimizer.gradient.mul_(1.0 / scale)
    task.step_hooks.gradients()
    total, measured = sums.tensor_split([1])
    norm = task.step_hooks.norm(optimizer, lambda norms: rank.sum_([norms], in_tree=False))
    values = torch.cat([total / divisor, norm.double().reshape(1), measured])
    loss_value, norm_value, *sums_of_all = values.tolist()  # the step's one synchronisation
    named = dict(zip(task.measures, sums_of_all, strict=True))
    return Gradients(loss_value, norm_value, tokens, labels, named, tuple(one["seconds"] for one in every), scale)


def _count(laid: Sequence[Sequence[Batch]]) -> Json:
    batches = [batch for part in laid for batch in part]
    labels, tokens = sum(batch.labels for batch in batches), sum(batch.tokens for batch in batches)
    divisor, each = math.fsum(batch.divisor for batch in batches), [len(part) for part in laid]
    return {"labels": labels, "divisor": divisor, "tokens": tokens, "passes": len(batches), "each": each}


def run_dummy_passes(rank: Rank, passes: Sequence[int], one_pass: Callable[[], object]) -> None:
    """Do passes without effect where this rank has fewer than another and each pass is one of all ranks. passes: number by rank."""
    for _ in range(max(passes) - passes[rank.number] if rank.together else 0):
        one_pass()


def _dummy_pass(task: AnyTask, step: int) -> None:
    """Pass a few tokens through the model and back. What it leaves in the gradients is cleared by what follows."""
    with tag_out_of_memory(None, "a pass for the other ranks"):
        task.step_hooks.begin_pass(counts=False)
        task.loss_sum(task.small_batch(), step)[0].backward()  # type: ignore[no-untyped-call]
        task.step_hooks.end_pass()


def _in_tree(
    task: AnyTask, optimizer: FlatOptimizer, step: int, laid: Sequence[Sequence[Batch]], divisor: float, announce: Announce
) -> Tensor:
    """Leave the parts' gradients, added in a binary tree, in the optimizer; losses and measures, added alike: [1 + measures].

    divisor: what losses are divided by.

    Of n parts it holds the sums of at most log2(n) finished subtrees at a time.
    """
    held: list[tuple[Tensor, Tensor]] = []
    number = 0
    for done, part in enumerate(laid, 1):
        optimizer.clear()
        found = [_accumulate(task, optimizer, step, number + at, batch, divisor, announce) for at, batch in enumerate(part)]
        number += len(part)
        found = found or [torch.zeros(1 + len(task.measures), dtype=torch.float64, device=optimizer.gradient.device)]
        sums: Tensor = sum(found[1:], start=found[0])
        for _ in range((done & -done).bit_length() - 1):
            gradient, before = held.pop()
            optimizer.gradient.add_(gradient)
            sums = before + sums
        if done < len(laid):
            held.append((optimizer.gradient.clone(), sums))
    return sums


def _in_rounds(
    task: AnyTask,
    optimizer: FlatOptimizer,
    step: int,
    laid: Sequence[Sequence[Batch]],
    each: Sequence[Sequence[int]],
    divisor: float,
    announce: Announce,
    rank: Rank,
) -> Tensor:
    """Add gradients where each pass sums over all ranks: the first micro-batches of all parts in a tree, then the second ones, and so on.

    Returns losses and measures of this rank's micro-batches by round and part, 0 for other ranks': [rounds, parts, 1 + measures]. each:
    number of micro-batches in the parts of each rank. Neighbouring parts are on neighbouring ranks, whose pass adds them.
    """
    rounds = max(1, *(count for counts in each for count in counts))
    found = torch.zeros(rounds, len(laid) * rank.size, 1 + len(task.measures), dtype=torch.float64, device=optimizer.gradient.device)
    total: Tensor | None = None
    number = 0
    for one in range(rounds):
        held: list[Tensor] = []
        for done, part in enumerate(laid, 1):
            optimizer.clear()
            if one < len(part):
                found[one, (done - 1) * rank.size + rank.number] = _accumulate(task, optimizer, step, number, part[one], divisor, announce)
                number += 1
            elif any(one < counts[done - 1] for counts in each):
                _dummy_pass(task, step)
            for _ in range((done & -done).bit_length() - 1):
                optimizer.gradient.add_(held.pop())
            if done < len(laid):
                held.append(optimizer.gradient.clone())
        if total is not None:
            optimizer.gradient.add_(total)
        total = optimizer.gradient.clone() if one + 1 < rounds else None
    return found


def _over_rounds(found: Tensor) -> Tensor:
    """Add what `_in_rounds` returned in the order its gradients are added: [rounds, parts, 1 + measures] to [1 + measures]."""
    while found.shape[1] > 1:
        found = found[:, ::2] + found[:, 1::2]
    total: Tensor = sum(found[1:, 0], start=found[0, 0])
    return total


def _accumulate(
    task: AnyTask, optimizer: FlatOptimizer, step: int, number: int, batch: Batch, divisor: float, announce: Announce
) -> Tensor:
    """Add one micro-batch's share to the gradients; return its loss and what was measured beside it, [1 + measures]. Raises OutOfMemory."""
    with tag_out_of_memory(batch):
        factor = announce("forward", number, batch)
        task.step_hooks.begin_pass(counts=True)
        loss, measured = task.loss_sum(batch, step)
        if factor != 1.0:
            loss = loss * factor
        factor = announce("backward", number, batch)
        (loss / divisor).backward()  # type: ignore[no-untyped-call]
        task.step_hooks.end_pass()
        if factor != 1.0:
            optimizer.gradient.mul_(factor)
        return torch.cat([loss.detach().double().reshape(1), measured.double().reshape(-1)])


def update(optimizer: FlatOptimizer, computed: Gradients, lr: float, max_grad_norm: float) -> None:
    """Clip the gradients to `max_grad_norm` and take one optimizer step. Only after the gate."""
    factor = max_grad_norm / (computed.grad_norm + 1e-6)
    if factor < 1.0:
        optimizer.gradient.mul_(factor)
    optimizer.step(lr)


def gradients_sha256(optimizer: FlatOptimizer) -> str:
    """Hash names and bytes of all gradients with SHA-256, in the order of names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(optimizer.parameters.items()):
        assert parameter.grad is not None
        digest.update(name.encode())
        digest.update(parameter.grad.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
