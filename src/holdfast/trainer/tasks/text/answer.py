"""Let a model answer prompts greedily, in batches. Judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from holdfast.trainer.model.greedy import by_room
from holdfast.trainer.model.portions import Some, first_of, in_portions
from holdfast.trainer.protocol.task import Asked

_BATCH = 16


def ignore(rows: int) -> None:
    """Do nothing with a number of rows."""


def answers(
    model: Any, prompts: list[list[int]], tokenizer: Tokenizer, pad: int, ends: Sequence[int], longest: int, asked: Asked = ignore
) -> list[str]:
    """Generate one answer per prompt (token ids), in order, without special tokens and surrounding blanks.

    ends: every token that ends an answer; the one that the chat template writes is often another than the tokenizer's end of text.
    """
    found = [""] * len(prompts)

    def work(most: int, some: Some) -> list[list[int]]:
        return _generate(model, [prompts[at] for at in some.numbers], pad, ends, most, asked)

    for most, numbers in by_room(model, prompts, longest):
        for some, answered in in_portions(numbers, _BATCH, first_of, partial(work, most)):
            for at, ids in zip(some.numbers, answered, strict=True):
                found[at] = tokenizer.decode(ids, skip_special_tokens=True).strip()
            asked(len(some.numbers))
    return found


class _Lives(StoppingCriteria):  # type: ignore[misc]
    """Stops nothing: says after each token that there was one."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.asked(0)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _generate(model: Any, prompts: list[list[int]], pad: int, ends: Sequence[int], longest: int, asked: Asked) -> list[list[int]]:
    width = max(map(len, prompts))
    device = next(model.parameters()).device
    ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    with torch.inference_mode():
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            num_beams=1,
            repetition_penalty=1.0,  # as verify and serve answer, whatever the model's generation_config.json has for sampling
            no_repeat_ngram_size=0,
            max_new_tokens=longest,
            pad_token_id=pad,
            eos_token_id=[*ends] or None,
            use_cache=True,
            stopping_criteria=StoppingCriteriaList([_Lives(asked)]),
        )
    return [_until(row[width:].tolist(), ends) for row in out]


def _until(ids: list[int], ends: Sequence[int]) -> list[int]:
    return ids[: next((at for at, number in enumerate(ids) if number in ends), len(ids))]
