"""Greedy answers in batches, with the keys and values of what was read kept. Judges nothing.

Prompts of about one length go together, padded on the left; a row that has ended leaves the batch once it is a quarter empty, and
what is waiting is begun when nothing is left of it. A model that gives other logits so (one that counts the padding, or keeps its state
under another name) reads each prompt by itself, and all of it for every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from holdfast.trainer.common.decoder import table_of_positions
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.model.portions import Some, first_of, in_portions
from holdfast.trainer.model.unfit import CODE

_BATCH = 64
_SAME = 1e-3  # of the logits' norm: another order of additions


class GreedyAnswer(NamedTuple):
    """Token numbers without the one that ended it, by how much each was ahead of the second best, and whether it ended by itself.

    Of an answer that ended by itself there is one margin more, that of its end.
    """

    ids: list[int]
    margins: list[float]
    ended: bool


def greedy(
    model: Any,
    prompts: Sequence[Sequence[int]],
    pad: int,
    ends: Sequence[int],
    longest: int,
    answered: Callable[[int], None] = lambda new: None,
) -> list[GreedyAnswer]:
    """Generate one answer of at most `longest` tokens to each prompt, in their order. answered: called as each answer ends."""
    together = bool(prompts) and batches(model, prompts, pad)
    found: dict[int, GreedyAnswer] = {}

    def work(most: int, some: Some) -> list[GreedyAnswer]:
        asked = [prompts[at] for at in some.numbers]
        if together:
            return _batch(model, asked, pad, ends, most, answered)
        answers = [_alone(model, prompt, ends, most) for prompt in asked]
        answered(len(answers))
        return answers

    for most, numbers in by_room(model, prompts, longest):
        for some, answers in in_portions(numbers, _BATCH if together else 1, first_of, partial(work, most)):
            found |= zip(some.numbers, answers, strict=True)
    return [found[at] for at in range(len(prompts))]


def by_room(model: Any, prompts: Sequence[Sequence[int]], longest: int) -> Iterator[tuple[int, list[int]]]:
    """Yield (most tokens of an answer, numbers of the prompts with room for it), the shortest prompts first.

    Room is for `longest` tokens, or for fewer where a table of positions ends.
    """
    known = table_of_positions(*_without_virtual(model))

    def room(at: int) -> int:
        return longest if known is None else max(1, min(longest, known - len(prompts[at]) + 1))  # the last token is never read

    for most, numbers in groupby(sorted(range(len(prompts)), key=lambda at: len(prompts[at])), room):
        yield most, [*numbers]


@torch.inference_mode()
def batches(model: Any, prompts: Sequence[Sequence[int]], pad: int) -> bool:
    """Test whether left-padded prompts, read in two passes, give the logits of each prompt read alone in one pass.

    Tried with the longest of them and the shortest of two tokens or more; False where none is longer than two.
    """
    longest = max(prompts, key=len)
    shortest = min((prompt for prompt in prompts if 1 < len(prompt) < len(longest)), key=len, default=longest[1:])
    if len(shortest) < 2:
        return False
    pair = [longest, shortest]
    wanted = [_last_logits(model, prompt) for prompt in pair]
    inner, virtual = _without_virtual(model)
    try:
        shown, mask, positions = _begin_batch(inner, [prompt[:-1] for prompt in pair], pad, virtual)
        cache = DynamicCache(config=inner.config)
        _next_logits(inner, shown, mask, positions, cache)
        cache.batch_select_indices(torch.arange(len(pair), device=mask.device))
        shown = {"input_ids": torch.tensor([prompt[-1:] for prompt in pair], device=mask.device)}
        mask = torch.cat([mask, mask.new_ones(len(pair), 1)], dim=1)
        found = _next_logits(inner, shown, mask, positions[:, -1:] + 1, cache)
    except CODE as error:
        if is_out_of_memory(error):
            raise
        return False
    return all(float((one - other).norm()) <= _SAME * float(other.norm()) for one, other in zip(found, wanted, strict=True))


@torch.inference_mode()
def _alone(model: Any, prompt: Sequence[int], ends: Sequence[int], longest: int) -> GreedyAnswer:
    """Generate the answer to one prompt without a key-value cache."""
    answer = GreedyAnswer([], [], False)
    for _ in range(longest):
        best = _last_logits(model, [*prompt, *answer.ids]).topk(2)
        answer.margins.append(float(best.values[0] - best.values[1]))
        if (number := int(best.indices[0])) in ends:
            return answer._replace(ended=True)
        answer.ids.append(number)
    return answer


def _last_logits(model: Any, prompt: Sequence[int]) -> Tensor:
    """Compute the logits after the last token of one prompt: [vocabulary]."""
    inner, shown = begin_alone(model, prompt)
    logits: Tensor = inner(**shown, use_cache=False).logits[0, -1].float()
    return logits


def begin_alone(model: Any, prompt: Sequence[int]) -> tuple[Any, dict[str, Tensor]]:
    """Return (the model inside, what it is given of one prompt): a prompt adapter's virtual tokens stand before it this once."""
    inner, virtual = _without_virtual(model)
    return inner, _begin_batch(inner, [prompt], 0, virtual)[0]


def _begin_batch(model: Any, prompts: Sequence[Sequence[int]], pad: int, virtual: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return what a model is given for left-padded prompts: (inputs, attention mask, positions)."""
    device = next(model.parameters()).device
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + [*prompt] for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * (len(virtual) + len(prompt)) for prompt in prompts], device=device)
    shown = {"inputs_embeds": _embed_prompts(model, ids, [*map(len, prompts)], virtual)} if len(virtual) else {"input_ids": ids}
    return shown, mask, (mask.cumsum(1) - 1).clamp(min=0)


def _next_logits(model: Any, shown: dict[str, Tensor], mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
    """Compute the logits after the last token of each row: [rows, vocabulary]."""
    given = {"position_ids": positions} if _takes_positions(model) else {}
    found = model(**shown, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1, **given)
    logits: Tensor = found.logits[:, -1].float()
    return logits


@torch.inference_mode()
def _batch(
    model: Any, prompts: list[Sequence[int]], pad: int, ends: Sequence[int], longest: int, answered: Callable[[int], None]
) -> list[GreedyAnswer]:
    model, virtual = _without_virtual(model)
    shown, mask, positions = _begin_batch(model, prompts, pad, virtual)
    cache = DynamicCache(config=model.config)
    answers = [GreedyAnswer([], [], False) for _ in prompts]
    rows = list(range(len(prompts)))  # which prompt each row of the batch is; None once it has ended
    alive = torch.ones(len(rows), dtype=torch.bool)
    for _ in range(longest):
        best = _next_logits(model, shown, mask, positions, cache).topk(2)
        chosen, ahead = best.indices[:, 0].tolist(), (best.values[:, 0] - best.values[:, 1]).tolist()
        for at, (number, margin) in enumerate(zip(chosen, ahead, strict=True)):
            if not alive[at]:
                continue
            answer = answers[rows[at]]
            answer.margins.append(margin)
            if number in ends:
                answers[rows[at]] = answer._replace(ended=True)
                alive[at] = False
                answered(1)
            else:
                answer.ids.append(number)
        if not alive.any():
            break
        ids, positions = best.indices[:, :1], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        if 4 * int(alive.sum()) <= 3 * len(rows):
            ids, positions, mask, rows, alive = _without_ended(cache, alive, ids, positions, mask, rows)
        shown = {"input_ids": ids}
    answered(int(alive.sum()))
    return answers


def _without_ended(
    cache: DynamicCache, alive: Tensor, ids: Tensor, positions: Tensor, mask: Tensor, rows: list[int]
) -> tuple[Tensor, Tensor, Tensor, list[int], Tensor]:
    """Remove rows that have ended from the batch and its cache; return (ids, positions, mask, rows, alive) of the others."""
    kept = alive.nonzero().flatten()
    there = kept.to(ids.device)
    cache.batch_select_indices(there)
    return ids[there], positions[there], mask[there], [rows[at] for at in kept.tolist()], torch.ones(len(kept), dtype=torch.bool)


def _without_virtual(model: Any) -> tuple[Any, Tensor]:
    """Return (the model inside, [tokens, width] of the embeddings that a prompt adapter puts before every prompt).

    PEFT would put them before each step.
    """
    config = getattr(model, "active_peft_config", None)
    if config is None or not config.is_prompt_learning:
        return model, torch.empty(0, 0)
    virtual: Tensor = model.get_prompt(batch_size=1)
    return model.get_base_model(), virtual[0]


def _embed_prompts(model: Any, ids: Tensor, lengths: list[int], virtual: Tensor) -> Tensor:
    """Embed left-padded prompts as [rows, tokens, width], the virtual tokens right before the first token of each."""
    rows = model.get_input_embeddings()(ids)
    begins, virtual = [ids.shape[1] - length for length in lengths], virtual.to(rows.dtype)
    return torch.stack([torch.cat([row[:begin], virtual, row[begin:]]) for row, begin in zip(rows, begins, strict=True)])


def _takes_positions(model: Any) -> bool:
    """Return whether the architecture takes position ids; ALiBi, for example, counts for itself."""
    from inspect import signature

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "position_ids" in signature(inner.forward).parameters
