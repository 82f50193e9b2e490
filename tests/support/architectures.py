"""Small random models of many architectures, a task around each without a run, and what their gradients are compared with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from holdfast.data.token_set.token_set import TokenSet
from holdfast.trainer.model.attention import Kernel, packed_attention
from holdfast.trainer.model.layers.dropout import StepContext, make_stateless
from holdfast.trainer.model.layers.lora import use_lean_lora
from holdfast.trainer.model.layers.mixed import mix_precision
from holdfast.trainer.model.load import without_attention_dropout
from holdfast.trainer.model.trained.adapters import artifact_tensors
from holdfast.trainer.protocol.step_hooks import StepHooks
from holdfast.trainer.tasks.text.packing import grouped_batches
from holdfast.trainer.tasks.text.task import Sft
from holdfast.trainer.tasks.text.text_model import LabelLoss
from support.rounding import assert_equal_but_for_rounding, but_for_rounding

SIZES = {"vocab_size": 211, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GQA = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0}
ARCHITECTURES: dict[str, Callable[[], Any]] = {
    "qwen2": lambda: transformers.Qwen2Config(**GQA),
    "qwen3": lambda: transformers.Qwen3Config(**GQA, head_dim=16),
    "llama": lambda: transformers.LlamaConfig(**GQA),
    "mistral": lambda: transformers.MistralConfig(**GQA, sliding_window=12),
    "phi3": lambda: transformers.Phi3Config(**GQA, sliding_window=12),
    "gemma2": lambda: transformers.Gemma2Config(
        **GQA, head_dim=8, sliding_window=12, attn_logit_softcapping=2.0, final_logit_softcapping=0.5, query_pre_attn_scalar=8
    ),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **GQA, head_dim=8, sliding_window=12, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=211, n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "granite": lambda: transformers.GraniteConfig(**GQA, logits_scaling=3.0, embedding_multiplier=2.0),
    "cohere": lambda: transformers.CohereConfig(**GQA, logit_scale=0.25),
}
HYBRIDS: dict[str, Callable[[], Any]] = {
    "ssm hybrid": lambda: transformers.BambaConfig(
        **GQA, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_expand=2
    ),
    "alibi": lambda: transformers.BloomConfig(
        vocab_size=211, hidden_size=32, n_layer=2, n_head=4, attention_dropout=0.0, hidden_dropout=0.0
    ),
}
LENGTHS = (31, 7, 19, 2, 26, 40)
LABELS = sum(LENGTHS) // 2  # of a step on `tokens_of`, about
TERMS = 10_000  # that a loss or a gradient's element of such a model sums up: labels times width, mlp and vocabulary of two layers, about
ROUNDINGS = 256  # of a number in 16 bits: some sixty results of a layer and its adapters, two layers, forward and backward


def tokens_of(lengths: tuple[int, ...] = LENGTHS) -> TokenSet:
    rng = np.random.default_rng(5)
    starts = np.cumsum([0, *lengths])
    learned = rng.integers(0, 2, int(starts[-1])).astype(np.uint8)
    learned[starts[1:] - 1] = 1  # the last token of a row is always learned
    learned[starts[:-1]] = 1  # the first would be predicted from the row before it, if samples saw each other
    ids = rng.integers(3, 211, int(starts[-1])).astype(np.int32)
    return TokenSet(ids, learned, starts, np.zeros(len(lengths), np.int32), np.arange(1, len(lengths) + 1), ("rows.jsonl",), 0, 0)


def task_of(
    config: Any,
    kind: str = "sdpa",
    packing: bool = True,
    dropout: float = 0.0,
    own_head: bool = False,
    mixed: bool = False,
    kernel: Kernel | None = None,
) -> Any:
    """An Sft task around a random model, without a run: the same parts in the same order."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    without_attention_dropout(base)
    for parameter in base.parameters():
        nn.init.normal_(parameter, std=0.3) if parameter.dim() > 1 else None
        parameter.data = parameter.data.bfloat16().float()
    if mixed:
        mix_precision(base, "cpu")
    lora = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    task: Any = Sft.__new__(Sft)
    task.model = get_peft_model(base, lora).train()
    for name, parameter in task.model.named_parameters():
        nn.init.normal_(parameter, std=0.1) if "lora_" in name else None
    task.context = StepContext(3)
    make_stateless(task.model, task.context)
    use_lean_lora(task.model, torch.bfloat16 if mixed else None)
    task.losses = LabelLoss(base, own_head)
    task.base, task.tokens, task.device, task.packing = base, tokens_of(), torch.device("cpu"), packing
    task.dtype = torch.bfloat16 if mixed else torch.float32
    task.artifact, task.liger, task.fused = artifact_tensors(task.model), None, None
    task.trained = task.artifact
    task.own_kind, task.keeping, task.step_hooks, task.noise = "eager", nullcontext, StepHooks(), None
    task.kernel = kernel
    task.kind = packed_attention(kind, task.context, kernel) if packing else "eager"
    base.set_attn_implementation(task.kind)
    return task


def gradients(task: Any, batches: list[Any]) -> tuple[float, dict[str, Tensor]]:
    task.model.zero_grad()
    total = 0.0
    for batch in batches:
        loss, _ = task.loss_sum(batch, 1)
        loss.backward()
        total += loss.item()
    return total, {name: p.grad.clone() for name, p in task.model.named_parameters() if p.grad is not None}


def one_by_one(config: Any, **changes: Any) -> tuple[float, dict[str, Tensor]]:
    """The reference: transformers' own attention and output layer, PEFT's own forward pass, each sample alone."""
    task = task_of(config, "eager", packing=False, own_head=True, **changes)
    for module in task.model.modules():
        if "forward" in vars(module):
            del module.forward
    rows = range(len(LENGTHS))
    return gradients(task, [batch for row in rows for batch in grouped_batches(task.tokens, [row], 1, task.device)])


Passed = tuple[float, dict[str, Tensor]]  # what `gradients` returns


def assert_equal(ours: Passed, theirs: Passed) -> None:
    """Fail where loss or the gradient of any matrix is further apart than rounding in fp32 takes it."""
    assert ours[0] == but_for_rounding(theirs[0], TERMS)
    assert set(ours[1]) == set(theirs[1])
    for name, grad in theirs[1].items():
        assert_equal_but_for_rounding(ours[1][name], grad, TERMS, what=name)


def assert_equal_in_16_bits(ours: Passed, theirs: Passed, dtype: torch.dtype = torch.bfloat16) -> None:
    """Fail where the loss or all gradients together are further apart than rounding of each layer's results takes them."""
    assert ours[0] == but_for_rounding(theirs[0], ROUNDINGS / LABELS, dtype)
    assert set(ours[1]) == set(theirs[1])
    one, other = (torch.cat([grads[name].float().flatten() for name in sorted(grads)]) for _, grads in (ours, theirs))
    assert_equal_but_for_rounding(one, other, ROUNDINGS, dtype)


def small_llama() -> Any:
    """A model of two layers, of which one matrix is trained."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).requires_grad_(False)
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(True)
    return model
