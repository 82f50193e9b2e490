"""A step is that of one whole padded batch in plain torch and PEFT, however its rows are cut up: loss, gradients, norm, clipping."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import PeftModel
from torch import Tensor

from holdfast.base.files import Json
from holdfast.data.token_set.token_set import TokenSet
from holdfast.trainer.distributed.rank import Rank
from holdfast.trainer.optim.loss_scale import LossScale
from holdfast.trainer.step.step import Gradients
from support.architectures import GQA, ROUNDINGS, TERMS, tokens_of
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder

LENGTHS = (97, 2, 41, 3, 60, 5, 23, 2)
MOST = 0.5  # that gradients are clipped to
SILENT = (2, 5)  # rows of which no token is trained
WEIGHTS = (1.0, 3.0, 2.0, 0.5, 0.25, 1.0, 2.0, 4.0)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one row": {},
    "rows of at most 100 tokens": {"micro_batch_tokens": 100},
    "padded": {"packing": False, "micro_batch_tokens": 120},
    "each alone": {"packing": False, "micro_batch_tokens": 1},
    "four parts": {"shards": 4, "micro_batch_tokens": 100},
    "parts at the same time": {"shards": 4, "at_once": 2, "part_threads": 1},
    "more parts than rows": {"shards": 16},
}
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("llama", {"dropout": 0.0}),
    "tokens of a tied table": ("tied", {"dropout": 0.0, "trainable_token_indices": [3, 5, 200]}),
    "all of a tied model": ("tied", {"type": "full"}),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    tied = model_folder(folder / "tied", lambda: transformers.LlamaConfig(**GQA, tie_word_embeddings=True))
    return {"llama": model_folder(folder / "llama"), "tied": tied}


def rows_of(weighted: bool) -> TokenSet:
    tokens = tokens_of(LENGTHS)
    learned = tokens.learned.copy()
    for row in SILENT:
        learned[tokens.starts[row] : tokens.starts[row + 1]] = 0
    return replace(tokens, learned=learned, weight=np.array(WEIGHTS, np.float32) if weighted else None)


def stand_of(model: Path, tokens: TokenSet, adapter: Json, settings: Json) -> Stand:
    """A stand whose adapter has learned something: with a fresh one, half of all gradients are zero."""
    train = {"optimizer": "sgd", "max_grad_norm": MOST}
    stand = Stand(model, tokens=tokens, settings=settings, adapter=adapter, train=train)
    if adapter.get("type") != "full":
        drawn = torch.randn(len(stand.optimizer.weights), generator=torch.Generator().manual_seed(2))
        with torch.no_grad():
            stand.optimizer.weights.copy_(0.1 * drawn)
    return stand


def plain_model(model: Path, stand: Stand, folder: Path) -> Any:
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    if stand.config.adapter.type == "full":
        return base
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(stand.artifact.to_bytes())
    (folder / "adapter_config.json").write_text(json.dumps(stand.task.form.config))
    return PeftModel.from_pretrained(base, folder, is_trainable=True)


def of_whole_batch(model: Any, tokens: TokenSet) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of all rows in one padded batch: the mean over trained tokens, each as often as its row counts."""
    ids = torch.full((len(tokens), max(LENGTHS)), tokens.pad)
    there, counts = torch.zeros_like(ids), torch.zeros(ids.shape)
    for at, (length, weight) in enumerate(zip(LENGTHS, tokens.weights_of([*range(len(tokens))]), strict=True)):
        row, learned = tokens.row(at)
        ids[at, :length], there[at, :length] = torch.from_numpy(row.astype(np.int64)), 1
        counts[at, :length] = float(weight) * torch.from_numpy(learned)
    logits = model(input_ids=ids, attention_mask=there).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    loss = (each * counts[:, 1:]).sum() / counts[:, 1:].sum()
    loss.backward()
    trained = {name.replace(".default", ""): one for name, one in model.named_parameters() if one.requires_grad}
    return loss.item(), trained


class OfTwo(Rank):
    """One of two ranks that are threads of this process."""

    size = 2

    def __init__(self, number: int, told: list[Any], met: threading.Barrier) -> None:
        self.number, self.told, self.met = number, told, met

    def every(self, own: Any) -> list[Any]:
        self.told[self.number] = own
        self.met.wait()
        told = [*self.told]
        self.met.wait()
        return told

    def exchange(self, facts: Json) -> list[Json]:
        return self.every(json.loads(json.dumps(facts)))

    def sum_(self, tensors: Sequence[Tensor], in_tree: bool) -> None:
        for tensor in tensors:
            one, other = self.every(tensor.clone())
            tensor.copy_(one + other)


def computed_by(stands: Sequence[Stand]) -> list[Gradients]:
    """What each rank computes of the step."""
    if len(stands) == 1:
        return [stands[0].compute(1)]
    told, met = [None] * 2, threading.Barrier(2)

    def compute(number: int) -> Gradients:
        try:
            stands[number].training.rank = OfTwo(number, told, met)
            return stands[number].compute(1)
        except BaseException:
            met.abort()
            raise

    with ThreadPoolExecutor(2) as threads:
        return [*threads.map(compute, range(2))]


def flat(stand: Stand, trained: dict[str, Tensor]) -> Tensor:
    """The gradients of plain torch in the order of a stand's block."""
    return torch.cat([torch.as_tensor(trained[name].grad).flatten() for name in stand.optimizer.parameters])


CASES = [
    *(("lora", layout, 1, weighted) for layout in LAYOUTS for weighted in (False, True)),
    *(("lora", layout, 2, True) for layout in ("one row", "padded", "four parts")),
    *((kind, "rows of at most 100 tokens", ranks, False) for kind in TRAINED if kind != "lora" for ranks in (1, 2)),
]


@pytest.mark.parametrize(("kind", "layout", "ranks", "weighted"), CASES)
def test_a_step_is_that_of_one_whole_batch(
    models: dict[str, Path], kind: str, layout: str, ranks: int, weighted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, adapter), tokens = TRAINED[kind], rows_of(weighted)
    stands = [stand_of(models[name], tokens, adapter, LAYOUTS[layout]) for _ in range(ranks)]
    loss, trained = of_whole_batch(plain_model(models[name], stands[0], tmp_path / "adapter"), tokens)
    whole = flat(stands[0], trained).clone()
    norm = float(torch.nn.utils.clip_grad_norm_(trained.values(), MOST))
    clipped = flat(stands[0], trained)
    assert norm > 2 * MOST, "nothing to clip"
    for stand, computed in zip(stands, computed_by(stands), strict=True):
        assert computed.loss == but_for_rounding(loss, TERMS) and computed.grad_norm == but_for_rounding(norm, TERMS)
        assert stand.optimizer.parameters.keys() == trained.keys()
        assert_equal_but_for_rounding(stand.optimizer.gradient, whole, TERMS)
        given = list[Tensor]()
        monkeypatch.setattr(stand.optimizer, "step", lambda _, stand=stand, given=given: given.append(stand.optimizer.gradient.clone()))
        assert stand.training.apply(1, computed)
        assert_equal_but_for_rounding(given[0], clipped, TERMS)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_scale_of_the_loss_changes_no_bit_of_what_the_weights_become(models: dict[str, Path], kind: str) -> None:
    """A power of two goes in and out of fp32 numbers without a trace: the norm is of what it was taken out of."""
    name, adapter = TRAINED[kind]
    found = []
    for scaled in (False, True):
        stand = stand_of(models[name], rows_of(True), adapter, {"micro_batch_tokens": 100})
        stand.training.scale = LossScale() if scaled else None
        computed = stand.compute(1)
        assert computed.scale == (2.0**16 if scaled else 1.0) and stand.training.apply(1, computed)
        found.append((computed.loss, computed.grad_norm, stand.artifact.to_bytes()))
    assert found[0] == found[1]


def test_clipping_in_fp16_is_by_the_norm_without_the_scale(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    name, adapter = TRAINED["lora"]
    wide, stand = (stand_of(models[name], rows_of(True), adapter, {"dtype": dtype}) for dtype in ("fp32", "fp16"))
    computed = stand.compute(1)
    assert computed.grad_norm == but_for_rounding(wide.compute(1).grad_norm, ROUNDINGS, torch.float16)
    leaf = torch.zeros_like(stand.optimizer.gradient, requires_grad=True)
    leaf.grad = stand.optimizer.gradient.clone()
    norm = float(torch.nn.utils.clip_grad_norm_([leaf], MOST))
    assert computed.scale == 2.0**16 and not computed.skipped and computed.grad_norm == but_for_rounding(norm, TERMS) and norm > 2 * MOST
    given = list[Tensor]()
    monkeypatch.setattr(stand.optimizer, "step", lambda _: given.append(stand.optimizer.gradient.clone()))
    assert stand.training.apply(1, computed)
    assert_equal_but_for_rounding(given[0], leaf.grad, TERMS)
