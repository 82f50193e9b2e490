"""What is trained beside layers: embeddings of tokens, weights of experts, noise on embeddings. Pure steps, and what PEFT loads."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel
from peft.tuners.trainable_tokens import TrainableTokensLayer

from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.run.adapter_folder import check_start, read_start, settled
from holdfast.trainer.common.images import TensorImage
from holdfast.trainer.common.refuse import Refusal, put_in
from holdfast.trainer.model.plain import load_plain
from holdfast.trainer.tasks.text.compared import switched_off
from holdfast.trainer.tasks.text.divergence import kl_to_reference
from holdfast.trainer.tasks.text.packing import grouped_batches
from support.architectures import ARCHITECTURES, GQA, LABELS, ROUNDINGS, TERMS
from support.pairs import pairs_of
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "tokens": ("llama", {"trainable_token_indices": [3, 5, 200]}),
    "tokens of a tied table": ("tied", {"trainable_token_indices": [3, 5, 200], "type": "dora"}),
    "tokens of a scaled table": ("gemma3", {"trainable_token_indices": [7]}),
    "experts": ("experts", {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], "targets": ["q_proj"]}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(ARCHITECTURES, "experts", lambda: transformers.Qwen3MoeConfig(**GQA, **EXPERTS))
        patched.setitem(ARCHITECTURES, "tied", lambda: transformers.LlamaConfig(**GQA, tie_word_embeddings=True))
        return {kind: model_folder(folder / kind, kind, torch.bfloat16) for kind in ("llama", "tied", "gemma3", "experts")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_all_that_later_steps_need_and_peft_loads_what_is_left(models: dict[str, Path], kind: str, tmp_path: Path) -> None:
    name, adapter = KINDS[kind]
    stand = Stand(models[name], adapter=adapter)
    assert stand.task.prove() == ({}, "")
    losses = [stand.step(step) for step in range(1, 4)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(4, 6)]
    again = Stand(models[name], adapter=adapter)
    again.restore(kept)
    assert [again.step(step) for step in range(4, 6)] == losses[3:] and again.saved() == stand.saved()
    assert losses[-1] < losses[0]
    (tmp_path / "adapter_model.safetensors").write_bytes(stand.artifact.to_bytes())
    (tmp_path / "adapter_config.json").write_text(json.dumps(stand.task.form.config))
    base = transformers.AutoModelForCausalLM.from_pretrained(models[name], dtype=torch.float32, attn_implementation="eager")
    own: Any = PeftModel.from_pretrained(base, tmp_path).eval()
    total, labels = 0.0, 0
    for batch in grouped_batches(stand.task.tokens, stand.rows, 1, torch.device("cpu")):
        with torch.no_grad():
            logits = own(input_ids=batch.ids).logits.flatten(0, 1)[batch.label_at]
        total += float(torch.nn.functional.cross_entropy(logits, batch.label_ids, reduction="sum"))
        labels += batch.labels
    stand.task.model.eval()
    assert stand.compute(6).loss == but_for_rounding(total / labels, TERMS)
    narrow = load_plain(str(models[name]), str(tmp_path), torch.device("cpu"))
    with torch.no_grad():
        assert_equal_but_for_rounding(narrow(input_ids=batch.ids).logits, own(input_ids=batch.ids).logits, TERMS)


def test_a_peft_that_leaves_a_tables_scale_out_is_refused(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """As PEFT 0.17 does it."""
    for one in TrainableTokensLayer.__mro__:
        if "_get_embed_scale" in vars(one):
            monkeypatch.delattr(one, "_get_embed_scale")
    stand = Stand(models["llama"], adapter=KINDS["tokens"][1])
    assert stand.task.prove() == ({}, "")
    with pytest.raises(Refusal, match="does not scale this model"):
        Stand(models["gemma3"], adapter=KINDS["tokens"][1])


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_trained_tokens_meet_products_in_16_bits(models: dict[str, Path], dtype: str) -> None:
    adapter = KINDS["tokens of a tied table"][1]
    wide, half = (Stand(models["tied"], settings={"dtype": kind}, adapter=adapter) for kind in ("fp32", dtype))
    assert half.compute(1).loss == but_for_rounding(wide.compute(1).loss, ROUNDINGS / LABELS, half.task.dtype)
    delta = next(name for name in half.task.artifact if "trainable_tokens" in name)
    ours, theirs = (one.task.artifact[delta].grad for one in (half, wide))
    assert ours is not None and theirs is not None
    assert_equal_but_for_rounding(ours, theirs, ROUNDINGS, half.task.dtype)


@pytest.mark.parametrize(("tokens", "said"), [([4000], "is 4000, the embedding has 2"), (["<|nosuch|>"], "is no single token")])
def test_what_is_no_token_is_told(tokens: list[Any], said: str) -> None:
    config = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": {"trainable_token_indices": tokens}})
    from holdfast.trainer.model.trained.tokens import token_numbers

    table = torch.nn.Embedding(2, 1)
    with pytest.raises(Refusal, match=said):
        token_numbers(config, type("Model", (), {"get_input_embeddings": lambda self: table})())


STARTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"targets": ["q_proj", "down_proj"]}),
    ({"targets": ["q_proj", "gate_proj", "up_proj", "down_proj"]}, {}),
    (KINDS["experts"][1], {}),
]


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")  # PEFT's own, of experts it does match
@pytest.mark.parametrize(("adapter", "other"), STARTS)
def test_an_adapter_on_experts_is_gone_on_from_with_the_targets_it_was_trained_with(
    models: dict[str, Path], adapter: dict[str, Any], other: dict[str, Any], tmp_path: Path
) -> None:
    stand = Stand(models["experts"], adapter=adapter)
    stand.step(1)
    (tmp_path / "adapter_model.safetensors").write_bytes(stand.artifact.to_bytes())
    (tmp_path / "adapter_config.json").write_text(json.dumps(stand.task.form.config))
    start = read_start(tmp_path)
    for given, goes_on in ((adapter, True), (other, False)):
        again = Stand(models["experts"], adapter=given)
        config = settled(Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": given}).adapter, start.facts())
        check_start(start, config, read_model(str(models["experts"])))
        assert (config.r, config.targets) == (4, given.get("targets", "all-linear"))
        fresh = TensorImage(again.task.artifact)
        if goes_on:
            put_in(fresh, start.file, start.facts(), again.task.form.config)
            assert again.artifact.to_bytes() == stand.artifact.to_bytes()
            continue
        with pytest.raises(Refusal, match="cannot be used") as refused:
            put_in(fresh, start.file, start.facts(), again.task.form.config)
        assert "with the adapter.targets and adapter.target_parameters it was trained with" in refused.value.hint


def test_names_that_no_weight_has_are_told(models: dict[str, Path]) -> None:
    with pytest.raises(Refusal, match=r"names mlp\.expert\.down, and this model has no weight"):
        Stand(models["experts"], adapter={"target_parameters": ["mlp.expert.down"]})
    for adapter, said in (
        ({"target_parameters": ["x"], "dropout": 0.1}, "without dropout"),
        ({"type": "ia3", "trainable_token_indices": [3]}, "belongs to type"),
        ({"start": "/x", "trainable_token_indices": [3]}, "start goes on from"),
    ):
        with pytest.raises(ValueError, match=said):
            Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": adapter})


@pytest.mark.parametrize("kind", ["lora", "prompt"])
def test_noise_is_the_samples_own_and_only_in_training(models: dict[str, Path], kind: str) -> None:
    noisy = Stand(models["llama"], train={"neftune": 20.0}, adapter={"type": kind})
    plain = Stand(models["llama"], adapter={"type": kind})
    whole = noisy.compute(1)
    assert abs(whole.loss - plain.compute(1).loss) > 1e-4
    assert noisy.compute(1).loss == whole.loss != noisy.compute(2).loss
    assert noisy.compute(1, budget=45).loss == but_for_rounding(whole.loss, TERMS)  # in other company, in a row of its own
    noisy.task.model.eval()
    plain.task.model.eval()
    assert noisy.compute(1).loss == plain.compute(1).loss


@pytest.mark.parametrize("objective", ["sft", "dpo"])
def test_noise_and_masks_after_a_restart_are_those_of_a_run_that_was_not_stopped(models: dict[str, Path], objective: str) -> None:
    """Nothing is drawn from a generator, whose place a restart would have to find again; smoothed labels have no state either."""
    pairs = {"tokens": pairs_of()} if objective == "dpo" else {}
    smoothed = {"preference": {"label_smoothing": 0.2}} if objective == "dpo" else {}
    how: dict[str, Any] = {"train": {"neftune": 20.0, "objective": objective}, "adapter": {"dropout": 0.2}} | smoothed | pairs
    stand = Stand(models["llama"], **how)
    losses = [stand.step(step) for step in range(1, 3)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(3, 6)]
    torch.manual_seed(77)
    torch.rand(5)
    again = Stand(models["llama"], **how)
    again.restore(kept)
    assert [again.step(step) for step in range(3, 6)] == losses[2:] and again.saved() == stand.saved()
    assert len(set(losses)) == 5


def test_noise_has_the_size_of_its_paper(models: dict[str, Path]) -> None:
    stand = Stand(models["llama"], train={"neftune": 8.0}, settings={"packing": False})
    embedding = stand.task.base.get_input_embeddings()
    (batch,) = grouped_batches(stand.task.tokens, stand.rows, 10_000, torch.device("cpu"))
    stand.task.enter(batch, 3)
    with torch.no_grad():
        noise = (embedding(batch.ids) - torch.nn.functional.embedding(batch.ids, embedding.weight.float())).numpy()
    for row, length in zip(noise, batch.lengths, strict=True):
        most = 8.0 / np.sqrt(length * row.shape[1])
        assert np.abs(row[:length]).max() <= most * (1 + 1e-3)
        spread = most / np.sqrt(3)  # of a uniform number; its mean and its spread over so many are off by five standard errors at the most
        assert np.std(row[:length]) == pytest.approx(spread, rel=5 * np.sqrt(0.2 / row[:length].size))
        assert abs(row[:length].mean()) < 5 * spread / np.sqrt(row[:length].size)


def test_divergence_from_the_reference_is_that_of_plain_logits(models: dict[str, Path]) -> None:
    stand = Stand(models["llama"])
    for step in range(1, 4):
        stand.step(step)
    model: Any = stand.task.model.eval()
    tokens, rows, cpu = stand.task.tokens, stand.rows, torch.device("cpu")
    with stand.task.own_attention():
        ours = kl_to_reference(
            partial(switched_off, model, stand.task.losses), stand.task.losses, tokens, rows, stand.settings, cpu, lambda _: None
        )
        total, labels = 0.0, 0
        for batch in grouped_batches(tokens, rows, 1, cpu):
            with torch.no_grad():
                p = model(input_ids=batch.ids).logits[0, batch.label_at].double().log_softmax(-1)
                with model.disable_adapter():
                    q = model(input_ids=batch.ids).logits[0, batch.label_at].double().log_softmax(-1)
            total, labels = total + float((p.exp() * (p - q)).sum()), labels + batch.labels
    assert ours == but_for_rounding(total / labels, TERMS, condition=10) and ours > 1e-3
