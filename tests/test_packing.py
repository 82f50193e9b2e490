"""Samples that share a row give the loss and the gradients they give one by one, on every architecture; what cannot is found out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from holdfast.rows.tokens.token_set import TokenSet
from holdfast.trainer.model.attention import Kernel, packed_attention
from holdfast.trainer.model.dropout import StepContext, make_stateless
from holdfast.trainer.model.load import artifact_tensors, without_attention_dropout
from holdfast.trainer.model.lora import use_lean_lora
from holdfast.trainer.model.mixed import mix_precision
from holdfast.trainer.tasks.sft.packing import grouped_batches
from holdfast.trainer.tasks.sft.proof import disproof
from holdfast.trainer.tasks.sft.task import Sft
from holdfast.trainer.tasks.sft.text_model import LabelLoss

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
LENGTHS = (31, 7, 19, 2, 26, 40)


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
    use_lean_lora(task.model, mixed)
    task.losses = LabelLoss(base, own_head)
    task.base, task.tokens, task.device, task.packing = base, tokens_of(), torch.device("cpu"), packing
    task.dtype = torch.bfloat16 if mixed else torch.float32
    task.artifact, task.liger, task.fused = artifact_tensors(task.model), None, None
    task.own_kind, task.keeping = "eager", nullcontext
    task.kernel = kernel
    task.kind = packed_attention(kind, task.context, kernel) if packing else "eager"
    base.set_attn_implementation(task.kind)
    return task


def test_a_group_holds_what_its_budget_has_room_for() -> None:
    tokens = tokens_of()
    rows = sorted(range(len(LENGTHS)), key=lambda row: (LENGTHS[row], row))
    longest = LENGTHS[rows[2]]
    for budget, groups in ((3 * longest, [rows[:3]]), (3 * longest - 1, [rows[:2], rows[2:3]])):
        found = grouped_batches(tokens, rows[:3], budget, torch.device("cpu"))
        assert [list(batch.numbers) for batch in found] == groups


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


def assert_equal(ours: tuple[float, dict[str, Tensor]], theirs: tuple[float, dict[str, Tensor]]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    assert set(ours[1]) == set(theirs[1])
    for name, grad in theirs[1].items():
        torch.testing.assert_close(
            ours[1][name], grad, rtol=1e-3, atol=2e-5 * float(grad.abs().max()) + 1e-7, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_packed_samples_learn_what_they_learn_one_by_one(name: str, kind: str) -> None:
    config = ARCHITECTURES[name]()
    dropout = 0.2 if kind == "eager" else 0.0  # two paths through a LoRA layer
    task = task_of(config, kind, dropout=dropout)
    assert disproof(task) == ({}, "")
    batches = task.batches(list(range(len(LENGTHS))), 64)
    assert len(batches) == 2 and all(batch.ids.numel() == batch.tokens <= 64 for batch in batches), "padding, or a wasteful fit"
    assert_equal(gradients(task, batches), one_by_one(config, dropout=dropout))


HYBRIDS: dict[str, Callable[[], Any]] = {
    "ssm hybrid": lambda: transformers.BambaConfig(
        **GQA, attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_d_state=8, mamba_expand=2
    ),
    "alibi": lambda: transformers.BloomConfig(
        vocab_size=211, hidden_size=32, n_layer=2, n_head=4, attention_dropout=0.0, hidden_dropout=0.0
    ),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_an_architecture_whose_samples_would_see_each_other_is_found_out_and_padded(name: str) -> None:
    config = HYBRIDS[name]()
    changes, reason = disproof(task_of(config))
    assert changes == {"packing": False}
    assert "groups of like length" in reason
    padded = task_of(config, packing=False)
    assert disproof(padded) == ({}, "")
    assert_equal(gradients(padded, padded.batches(list(range(len(LENGTHS))), 64)), one_by_one(config))


def test_an_output_layer_that_does_more_is_found_out() -> None:
    task = task_of(ARCHITECTURES["llama"]())
    task.base.register_forward_hook(lambda module, given, out: transformers.utils.ModelOutput(logits=out.logits * 1.01))
    changes, reason = disproof(task)
    assert changes == {"own_head": True}
    assert "no plain product" in reason


def test_a_leak_of_one_token_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.trainer.model import attention

    task = task_of(ARCHITECTURES["qwen2"]())
    cut = torch.split

    def one_late(tensor: Tensor, sizes: list[int], dim: int) -> Any:
        return cut(tensor, [sizes[0] + 1, sizes[1] - 1] if len(sizes) == 2 else sizes, dim)

    monkeypatch.setattr(attention.torch, "split", one_late)
    assert disproof(task)[0] == {"packing": False}


def test_checkpointed_layers_change_no_bit() -> None:
    from holdfast.trainer.model.load import checkpoint_layers

    task = task_of(ARCHITECTURES["qwen2"](), dropout=0.2)
    batches = task.batches(list(range(len(LENGTHS))), 64)
    loss, plain = gradients(task, batches)
    assert checkpoint_layers(task.base, 1) == 2
    again, checkpointed = gradients(task, batches)
    assert again == loss
    assert all(torch.equal(grad, checkpointed[name]) for name, grad in plain.items())


@pytest.mark.parametrize("layers", [0, 1])
def test_activations_in_main_memory_change_no_bit_and_move_no_weight(layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.trainer.model.load import checkpoint_layers
    from holdfast.trainer.model.offload import HostActivations

    task = task_of(ARCHITECTURES["qwen2"](), dropout=0.2)
    checkpoint_layers(task.base, layers)
    batches = task.batches(list(range(len(LENGTHS))), 64)
    loss, plain = gradients(task, batches)
    moved: list[tuple[int, int]] = []
    pack = HostActivations._pack

    def spy(self: HostActivations, tensor: Tensor) -> Any:
        packed = pack(self, tensor)
        if not isinstance(packed, Tensor):
            assert packed[1].untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
            moved.append((tensor.untyped_storage().data_ptr(), tensor.numel()))
        return packed

    monkeypatch.setattr(HostActivations, "_pack", spy)
    task.keeping = HostActivations(task.model)
    again, kept = gradients(task, batches)
    assert again == loss
    assert all(torch.equal(grad, kept[name]) for name, grad in plain.items())
    assert moved, "nothing was moved"
    assert not {place for place, _ in moved} & {weight.untyped_storage().data_ptr() for weight in task.model.parameters()}


@pytest.mark.parametrize("narrow", [False, True])
def test_a_large_vocabulary_costs_a_chunk_of_logits(monkeypatch: pytest.MonkeyPatch, narrow: bool) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    from holdfast.trainer.model import head as module

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = function(*args, **(kwargs or {}))
            made = [out] if isinstance(out, Tensor) else []
            self.elements = max(self.elements, *(tensor.numel() for tensor in made), 0)
            return out

    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 7 * 151_936)
    monkeypatch.setattr(module, "WIDENED_ROWS", 1000)
    torch.manual_seed(1)
    layer = nn.Linear(4, 151_936, bias=False).requires_grad_(False)
    layer.weight.data = layer.weight.data.bfloat16() if narrow else layer.weight.data.bfloat16().float()
    head = module.Head(SimpleNamespace(get_output_embeddings=lambda: layer, config=transformers.Qwen2Config()))
    hidden = torch.randn(40, 4, requires_grad=True)
    labels = torch.randint(0, 151_936, (40,))
    labels[:13] = (hidden @ layer.weight.float().t()).argmax(1)[:13]
    with Largest() as seen:
        loss, right = head.loss_sum(hidden, labels)
        loss.backward()
    ours, hidden.grad = hidden.grad, None
    logits = hidden @ layer.weight.float().t()
    torch.nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    assert int(right) == 13, "labels with the largest logit"
    torch.testing.assert_close(ours, hidden.grad, rtol=1e-4, atol=1e-6)
    assert seen.elements <= 7 * 151_936 < logits.numel() / 5


def test_weights_kept_in_sixteen_bits_give_what_widened_ones_give(tmp_path: Any) -> None:
    from holdfast.trainer.model.frozen import keep_narrow

    def trained(narrow: bool) -> tuple[float, dict[str, Tensor]]:
        task = task_of(ARCHITECTURES["qwen3"](), dropout=0.1)
        for parameter in task.base.parameters():
            parameter.data = parameter.data.bfloat16().float()
        if narrow:
            bare = [module for name, module in task.base.named_modules() if "lora_" not in name]
            saved = sum(keep_narrow(_Only(module), torch.bfloat16) for module in bare if type(module) in (nn.Linear, nn.Embedding))
            assert saved == 2 * sum(p.numel() for p in task.base.parameters() if p.dtype == torch.bfloat16) > 0
        return gradients(task, task.batches(list(range(len(LENGTHS))), 64))

    wide, narrow = trained(False), trained(True)
    assert narrow[0] == pytest.approx(wide[0], rel=1e-6)
    assert_equal(narrow, wide)


class _Only(nn.Module):
    """One module as `keep_narrow` would meet it in a model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
