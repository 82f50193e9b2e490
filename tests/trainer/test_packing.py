"""Samples that share a row give the loss and the gradients they give one by one, on every architecture; what cannot is found out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from holdfast.trainer.tasks.text import proof
from holdfast.trainer.tasks.text.packing import grouped_batches
from holdfast.trainer.tasks.text.proof import disproof
from holdfast.trainer.tasks.text.text_model import turning_length
from support.architectures import ARCHITECTURES, GQA, HYBRIDS, LENGTHS, TERMS, assert_equal, gradients, one_by_one, task_of, tokens_of
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder


def test_a_group_holds_what_its_budget_has_room_for() -> None:
    tokens = tokens_of()
    rows = sorted(range(len(LENGTHS)), key=lambda row: (LENGTHS[row], row))
    longest = LENGTHS[rows[2]]
    for budget, groups in ((3 * longest, [rows[:3]]), (3 * longest - 1, [rows[:2], rows[2:3]])):
        found = grouped_batches(tokens, rows[:3], budget, torch.device("cpu"))
        assert [list(batch.numbers) for batch in found] == groups


@pytest.mark.matrix
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


@pytest.mark.parametrize("name", HYBRIDS)
def test_an_architecture_whose_samples_would_see_each_other_is_found_out_and_padded(name: str) -> None:
    config = HYBRIDS[name]()
    changes, reason = disproof(task_of(config))
    assert changes == {"packing": False}
    assert "groups of like length" in reason
    padded = task_of(config, packing=False)
    assert disproof(padded) == ({}, "")
    assert_equal(gradients(padded, padded.batches(list(range(len(LENGTHS))), 64)), one_by_one(config))


@pytest.mark.parametrize("name", ["phimoe", "qwen2_moe"])
def test_a_window_that_a_model_keeps_to_itself_and_the_proof_does_not_cross_is_found_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_LONGEST", 40)  # as 1,056 tokens do not cross a window of 2,047
    more = {"phimoe": {"num_local_experts": 2}, "qwen2_moe": {"num_experts": 4, "use_sliding_window": True, "max_window_layers": 2}}[name]
    made = {"phimoe": transformers.PhimoeConfig, "qwen2_moe": transformers.Qwen2MoeConfig, "mistral": transformers.MistralConfig}
    for kind, window, reason in ((name, 60, "window of 60"), (name, 90, ""), ("mistral", 60, "")):
        config = made[kind](**GQA, **(more if kind == name else {}), sliding_window=window)
        monkeypatch.setitem(ARCHITECTURES, "windowed", lambda config=config: config)
        changes, told = disproof(Stand(model_folder(tmp_path / f"{kind}-{window}", "windowed"), tokens_of((80, 70))).task)
        assert changes == ({"packing": False} if reason else {}) and reason in told, (kind, window, told)


def longrope() -> Any:
    rope = {"rope_type": "longrope", "rope_theta": 10_000.0, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 8.0}
    rope["original_max_position_embeddings"] = 32
    return transformers.Phi3Config(**GQA, eos_token_id=1, original_max_position_embeddings=32, rope_parameters=rope)


@pytest.mark.parametrize("packing", [True, False])
def test_a_row_is_turned_as_alone_whatever_longer_one_is_in_its_step(packing: bool, tmp_path: Path) -> None:
    """Beside a row beyond the length a model was trained with first, shorter ones were turned by frequencies that are not theirs."""
    tokens, found = tokens_of((60, 10, 12, 31, 33, 8)), {}
    for budget, apart in ((1, True), (400, True), (400, False)):
        settings = {"packing": packing, "rope_apart": apart, "micro_batch_tokens": budget}
        stand = Stand(model_folder(tmp_path / f"{budget}-{apart}", longrope), tokens, settings, adapter={"dropout": 0.0})
        assert stand.task.prove() == ({}, "")
        found[budget, apart] = stand.compute(1).loss, stand.optimizer.gradient
    (alone, wanted), (together, ours), (before, _) = found.values()
    assert together == but_for_rounding(alone, TERMS) and before != but_for_rounding(alone, TERMS), "a run of before goes on as it was"
    assert_equal_but_for_rounding(ours, wanted, TERMS)
    assert turning_length(ARCHITECTURES["phi3"]()) is turning_length(ARCHITECTURES["gemma3"]()) is None


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
    head = module.OutputHead(SimpleNamespace(get_output_embeddings=lambda: layer, config=transformers.Qwen2Config()))
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
    assert_equal_but_for_rounding(ours, hidden.grad, 151_936)  # the vocabulary
    assert seen.elements <= 7 * 151_936 < logits.numel() / 5


def test_weights_kept_in_sixteen_bits_give_what_widened_ones_give(tmp_path: Any) -> None:
    from holdfast.trainer.model.frozen.halves import keep_narrow

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
    assert_equal(narrow, wide)


class _Only(nn.Module):
    """One module as `keep_narrow` would meet it in a model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
