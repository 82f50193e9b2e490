"""Weights held in 4 and 8 bits: the products are those of bitsandbytes' own layers, steps are pure, faults step down."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from conftest import holdfast
from holdfast.base.errors import Stop
from holdfast.base.files import sha256
from holdfast.base_model.folder import ModelFacts, comes_quantised, read_model
from holdfast.base_model.packed import PackedWeights
from holdfast.config.config import Config
from holdfast.planning.memory.frozen_form import as_it_comes
from holdfast.planning.serving_limits import limits
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.needs import refuse_what_is_missing
from holdfast.trainer.common.bitsandbytes_package import bitsandbytes
from holdfast.trainer.common.job import open_job
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.frozen import quantised
from holdfast.trainer.model.frozen.halves import widened
from holdfast.trainer.model.frozen.tensor_file import write_tensors
from holdfast.trainer.model.place import HeldForm
from holdfast.trainer.model.plain import load_plain
from holdfast.trainer.step.training_state import build
from support.architectures import LABELS, ROUNDINGS, TERMS
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder

pytest.importorskip("bitsandbytes")
KINDS = [("nf4", False), ("nf4", True), ("fp4", False), ("int8", False)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16)


def stand_of(model: Path, kind: str, double: bool = False, dtype: str = "fp32", adapter: str = "lora") -> Stand:
    train = {"frozen": kind, "double_quant": double, "lr": 1e-2}
    return Stand(model, settings={"frozen": kind, "double_quant": double, "dtype": dtype}, train=train, adapter={"type": adapter})


@pytest.mark.parametrize(("kind", "double"), KINDS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_state_holds_all_that_later_steps_need(model: Path, kind: str, double: bool, dtype: str) -> None:
    stand = stand_of(model, kind, double, dtype)
    assert stand.task.held and not stand.task.held.fault and stand.task.prove() == ({}, "")
    losses = [stand.step(step) for step in range(1, 4)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(4, 6)]
    again = stand_of(model, kind, double, dtype)
    assert again.task.held and again.task.held.sha256 == stand.task.held.sha256
    again.restore(kept)
    assert [again.step(step) for step in range(4, 6)] == losses[3:] and again.saved() == stand.saved()
    assert losses[-1] < losses[0]


def test_what_is_kept_has_the_bytes_of_safetensors_which_older_runs_compare(tmp_path: Path) -> None:
    found: dict[str, torch.Tensor] = {}
    for kind, double in KINDS:
        parts = quantised._parts(torch.randn(32, 64), PackedWeights(kind, double), bitsandbytes("a test"))  # type: ignore[arg-type]
        found |= {f"é.{kind}{double}:{name}": one for name, one in parts.items()}
    found["half"] = torch.ones(3, dtype=torch.bfloat16)
    digest = write_tensors(tmp_path / "kept.safetensors", found)
    assert (tmp_path / "kept.safetensors").read_bytes() == save(found) and digest == sha256(tmp_path / "kept.safetensors")
    assert write_tensors(None, found) == write_tensors(tmp_path / "kept.safetensors" / "no folder", found) == digest


def test_blocks_that_a_bitsandbytes_of_a_card_does_not_take_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("expected blocksize to be one of [128, 256], got 64")

    monkeypatch.setattr("bitsandbytes.functional.quantize_4bit", refuses)
    monkeypatch.setattr(quantised, "_open_cached", lambda *_: None)
    with pytest.raises(Refusal, match=r"blocks of 64 on this device: .*expected blocksize") as told:
        stand_of(model, "nf4")
    assert "bitsandbytes>=0.50" in told.value.hint


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its rows are whole blocks."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    return model_folder(tmp_path_factory.mktemp("wide"), dtype=torch.bfloat16, **sizes)


def test_dora_on_rows_that_are_no_whole_blocks_is_refused(model: Path) -> None:
    with pytest.raises(Refusal, match=r"multiple of 64 numbers; model\.layers\.0\.\S+ has 32"):
        stand_of(model, "nf4", adapter="dora")


@pytest.mark.parametrize(("adapter", "kind"), [*((name, "nf4") for name in ("dora", "adalora", "ia3", "prompt")), ("dora", "int8")])
def test_other_adapters_are_trained_on_few_bits_too(wide: Path, adapter: str, kind: str) -> None:
    stand = stand_of(wide, kind, adapter=adapter)
    losses = [stand.step(step) for step in range(1, 5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("adapter", [{"init": "orthogonal"}, {"type": "dora", "init": "orthogonal"}])
def test_an_orthogonal_start_on_few_bits_begins_on_its_base(wide: Path, adapter: dict[str, str], kind: str) -> None:
    settings = {"frozen": kind, "exact_start": True}
    plain, stand = (Stand(wide, settings=settings, train={"frozen": kind}, adapter=one) for one in ({}, adapter))
    assert stand.compute(1).loss == but_for_rounding(plain.compute(1).loss, TERMS)
    a, b = (next(one for name, one in stand.task.artifact.items() if f"lora_{side}" in name).detach() for side in "AB")
    assert float(a.norm()) > 0.1 and float(b.norm()) > 0.1 and float((b @ a).abs().max()) < 1e-6


def test_products_and_gradients_are_those_of_bitsandbytes_own_layer(wide: Path) -> None:
    import bitsandbytes

    stand = stand_of(wide, "nf4")
    module: Any = stand.task.base.get_submodule("model.layers.0.mlp.up_proj").base_layer
    theirs = bitsandbytes.nn.Linear4bit(module.in_features, module.out_features, bias=False, compute_dtype=torch.float32)
    theirs.weight = module.weight
    inputs = [torch.randn(6, module.in_features).requires_grad_()]
    inputs.append(inputs[0].detach().clone().requires_grad_())
    ours, own = module(inputs[0]), theirs(inputs[1])
    assert_equal_but_for_rounding(ours, own, module.in_features)
    ours.sum().backward()
    own.sum().backward()
    assert inputs[0].grad is not None and inputs[1].grad is not None
    assert_equal_but_for_rounding(inputs[0].grad, inputs[1].grad, module.out_features)


def test_weights_are_quantised_once_and_made_again_to_the_bit_where_they_were_lost(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    first = stand_of(model, "nf4").task.held
    (file,) = (tmp_path / "quantised").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr(quantised, "_parts", lambda *_: pytest.fail("quantised again"))
        again = stand_of(model, "nf4").task.held
    file.write_bytes(file.read_bytes()[:-9])
    third = stand_of(model, "nf4").task.held
    assert first and again and third and first.sha256 == again.sha256 == third.sha256


def test_a_kernel_that_is_silently_wrong_is_seen_before_step_1_and_steps_down(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(weight: Any, dtype: torch.dtype) -> torch.Tensor:
        return widened(weight, dtype) * 0.5

    monkeypatch.setattr("holdfast.trainer.model.frozen.halves.widened", wrong)  # not that of the proof's own look at the weight
    changes, reason = stand_of(model, "nf4").task.prove()
    assert changes == {"frozen": "half", "double_quant": False} and "weights are held in 16 bits: the" in reason


def test_what_does_not_go_together_is_told() -> None:
    for train, adapter, said in (
        ({"frozen": "nf4"}, {"type": "full"}, "type full trains the weights themselves"),
        ({"frozen": "int8", "double_quant": True}, {}, "double_quant belongs to"),
    ):
        with pytest.raises(ValueError, match=said):
            Config.model_validate({"model": "tiny", "data": {"files": "x"}, "train": train, "adapter": adapter})


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"quant_method": "gptq", "bits": 4}, "by gptq in 4 bits"),
        ({"quant_method": "fbgemm_fp8"}, "by fbgemm_fp8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"}, "bitsandbytes in 4"),
    ],
)
def test_a_model_that_comes_quantised_is_told_with_what_to_do(about: dict[str, Any], said: str) -> None:
    told = comes_quantised(ModelFacts(Path("m"), {"quantization_config": about}, {}, 0))
    assert told and said in told[0] and "nf4" in told[1]


@pytest.fixture(scope="module", params=KINDS, ids=lambda param: f"{param[0]}{'-double' if param[1] else ''}")
def packed(request: pytest.FixtureRequest, wide: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, bool]:
    """A model as transformers saves what bitsandbytes packed."""
    import transformers

    kind, double = request.param
    about = {"load_in_8bit": True} if kind == "int8" else {"load_in_4bit": True, "bnb_4bit_quant_type": kind}
    how = transformers.BitsAndBytesConfig(**about, bnb_4bit_use_double_quant=double)
    folder = tmp_path_factory.mktemp("packed")
    transformers.AutoModelForCausalLM.from_pretrained(wide, quantization_config=how, dtype=torch.bfloat16).save_pretrained(folder)
    return folder, kind, double


def test_a_model_that_comes_in_few_bits_is_trained_as_it_comes(packed: tuple[Path, str, bool], wide: Path) -> None:
    folder, kind, double = packed
    facts, whole = read_model(str(folder)), read_model(str(wide))
    assert facts.shapes == whole.shapes and facts.stored == "BF16"
    asked = Config.model_validate({"model": str(folder), "data": {"files": "x"}})
    held = as_it_comes(asked, facts).train
    assert (held.frozen, held.double_quant) == (kind, double)
    stand, own = stand_of(folder, kind, double), stand_of(wide, kind, double)
    assert stand.task.held and stand.task.prove() == ({}, "")
    losses = [stand.step(step) for step in range(1, 3)]
    assert losses == but_for_rounding([own.step(step) for step in range(1, 3)], TERMS)  # as if it had been packed here
    kept = stand.saved()
    last = stand.step(3)
    again = stand_of(folder, kind, double)
    again.restore(kept)
    assert again.step(3) == last and again.saved() == stand.saved()
    widened_first = stand_of(folder, "half").step(1)
    assert widened_first == but_for_rounding(losses[0], ROUNDINGS / LABELS, torch.bfloat16)


AS_IT_COMES: list[tuple[dict[str, Any], str]] = [
    ({"train": {"frozen": "int8"}}, "comes in nf4, by bitsandbytes, and train.frozen is int8: it would be rounded twice"),
    ({"train": {"frozen": "nf4", "double_quant": True}}, "train.frozen is nf4 with double_quant"),
    ({"adapter": {"type": "full"}}, "adapter.type full trains the weights themselves"),
    ({"train": {"fsdp": True, "ranks": 2}}, "train.fsdp cuts frozen layers"),
    ({"train": {"frozen": "half"}}, ""),
    ({}, ""),
]


@pytest.mark.parametrize(("sections", "said"), AS_IT_COMES)
def test_a_model_in_4_bits_asked_for_otherwise_is_refused_before_the_run(sections: dict[str, Any], said: str) -> None:
    about = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    facts = ModelFacts(Path("m"), {"quantization_config": about}, {}, 0)
    config = Config.model_validate({"model": "m", "data": {"files": "x"}} | sections)
    if not said:
        assert as_it_comes(config, facts).train.frozen == sections.get("train", {}).get("frozen", "nf4")
        return
    with pytest.raises(Stop, match=said) as stop:
        as_it_comes(config, facts)
    assert "16 bits" in stop.value.hint


def test_a_run_on_4_bits_ends_with_an_adapter_and_says_what_it_was_trained_on(config_of: Any, tmp_path: Path) -> None:
    config = config_of(train={"frozen": "nf4", "steps": 3}, data={"held_out": 0.05}, evaluate={"generate": 0})
    done = holdfast("train", config, "--run", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    assert "nf4" in (tmp_path / "run/frozen.json").read_text() and (tmp_path / "run/adapter/adapter_model.safetensors").is_file()
    run = RunFolder(tmp_path / "run")
    (run.path / "frozen.json").unlink()
    for folder in (run.trials / "001", run.attempt(1)):
        assert not (run.path / "frozen.json").exists(), "a trial, whose device may round otherwise, says nothing of the run's weights"
        job = open_job(run, 1, folder, {})
        build(job, job.settings(1))
    assert "nf4" in (run.path / "frozen.json").read_text()


LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"type": "dora"}, "no DoRA adapter; merged"),
    ({"type": "prompt"}, "no prompt tuning adapter"),
    ({"r": 48}, "--max-lora-rank 64"),
    ({"r": 16, "init": "pissa"}, "--max-lora-rank 32"),
    ({"r": 8, "modules_to_save": ["lm_head"]}, r"no adapter with modules_to_save \(lm_head\)"),
    ({"r": 8}, ""),
    ({"type": "full"}, ""),
]


@pytest.mark.parametrize(("adapter", "said"), LIMITS)
def test_who_cannot_serve_the_artifact_is_told_before_it_is_trained(adapter: dict[str, Any], said: str) -> None:
    found = limits(Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": adapter}))
    assert re.search(said, " ".join(found)) if said else not found


def test_a_package_that_is_not_installed_is_named_before_anything_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "train": {"frozen": "nf4", "optimizer": "adamw8bit"}})
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(Stop, match=r"frozen: nf4 and train.optimizer: adamw8bit need bitsandbytes") as stop:
        refuse_what_is_missing(config, read_model("tiny"))
    assert "'.[quantised]'" in stop.value.hint


def test_what_a_run_held_in_4_bits_is_measured_in_those_to_the_bit(model: Path) -> None:
    stand = stand_of(model, "nf4")
    held = HeldForm(PackedWeights("nf4"), "fp32")
    ids = torch.arange(3, 40)[None]
    with torch.inference_mode():
        found = load_plain(str(model), None, torch.device("cpu"), held=held)(input_ids=ids).logits
        wide = load_plain(str(model), None, torch.device("cpu"))(input_ids=ids).logits
        with stand.task.own_attention():
            wanted = stand.task.base(input_ids=ids).logits
    assert_equal_but_for_rounding(found, wanted, TERMS)
    assert (found - wide).abs().max() > 0.01 * wide.abs().max(), "4 bits can be told from 16"
