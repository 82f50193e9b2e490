"""Let a model answer prompts greedily, in batches. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer

_BATCH = 16
Asked = Callable[[int], None]  # is told how many rows a model was just asked for


def unheard(rows: int) -> None:
    """Nobody wants to know."""


def answers(
    model: Any, prompts: list[list[int]], tokenizer: Tokenizer, pad: int, eos: int | None, longest: int, asked: Asked = unheard
) -> list[str]:
    """One answer per prompt (token numbers), without special tokens and surrounding blanks, in the order of the prompts."""
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    found = [""] * len(prompts)
    for start in range(0, len(order), _BATCH):
        chosen = order[start : start + _BATCH]
        for at, ids in zip(chosen, _generate(model, [prompts[at] for at in chosen], pad, eos, longest), strict=True):
            found[at] = tokenizer.decode(ids, skip_special_tokens=True).strip()
        asked(len(chosen))
    return found


def _generate(model: Any, prompts: list[list[int]], pad: int, eos: int | None, longest: int) -> list[list[int]]:
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
            max_new_tokens=longest,
            pad_token_id=pad,
            eos_token_id=eos,
            use_cache=True,
        )
    return [_until(row[width:].tolist(), eos) for row in out]


def _until(ids: list[int], end: int | None) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids
