"""The tokens of `holdfast serve` by transformers are those of the model as PEFT has it, read whole for each token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftConfig, PromptTuningConfig, get_peft_model
from torch import nn

from holdfast.trainer.jobs.serve import _tokens
from support.architectures import ARCHITECTURES

PROMPT, LONGEST = [5, 9, 77, 3], 7
ADAPTERS: dict[str, PeftConfig] = {
    "lora": LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=5, token_dim=32, num_layers=2, num_attention_heads=4),
}


def generated(model: Any, which: str) -> list[int]:
    wanted = {"number": 1, "model": which, "ids": PROMPT, "longest": LONGEST, "temperature": 0, "top_p": 1.0, "seed": 0}
    parts = list(_tokens(model, wanted, [], torch.device("cpu"), set()))
    assert parts[-1] == {"end": "length"}
    return [part["id"] for part in parts[:-1]]


@torch.no_grad()
def read_whole(model: Any) -> list[int]:
    ids = list(PROMPT)
    for _ in range(LONGEST):
        ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(PROMPT) :]


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_side_writes_what_it_says_of_all_that_was_read(name: str) -> None:
    """PEFT puts a prompt adapter's tokens before each pass: behind the first token an answer was of another text."""
    torch.manual_seed(5)
    base = transformers.AutoModelForCausalLM.from_config(ARCHITECTURES["llama"]())
    for parameter in base.parameters():
        nn.init.normal_(parameter, std=0.4) if parameter.dim() > 1 else None
    model: Any = get_peft_model(base, ADAPTERS[name]).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4) if parameter.requires_grad else None
    wanted = read_whole(model)
    with model.disable_adapter():
        of_base = read_whole(model)
    assert (generated(model, "tuned"), generated(model, "base")) == (wanted, of_base)
    assert wanted != of_base


class _KeepsNothing(nn.Module):
    """Its next token is the sum of all that it is shown; it gives no cache."""

    config = None

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        logits = torch.zeros(1, 1, 101)
        logits[0, 0, int(input_ids.sum()) % 101] = 1.0
        return SimpleNamespace(logits=logits)


def test_a_model_that_gives_no_cache_reads_all_of_it_for_each_token() -> None:
    ids = list(PROMPT)
    for _ in range(LONGEST):
        ids.append(sum(ids) % 101)
    assert generated(_KeepsNothing(), "tuned") == ids[len(PROMPT) :]
