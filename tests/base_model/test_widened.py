"""Models that come in FP8 or MXFP4: widened to 16 bits as they are loaded, on any device; the rest refused before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from conftest import holdfast
from holdfast.base.errors import Stop
from holdfast.base_model.folder import ModelFacts, comes_quantised, read_model
from holdfast.config.config import Config
from holdfast.planning.memory.frozen_form import as_it_comes
from holdfast.trainer.model.plain import load_plain
from support.stand import Stand, model_folder

BLOCK = 16
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP8_ABOUT = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}


def in_fp8(weight: Tensor, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(in 8 bits, scales, what they stand for in bf16). whole: one scale for all of it."""
    rows, columns = weight.shape
    high, wide = (rows, columns) if whole else (BLOCK, BLOCK)
    cut = weight.float().reshape(rows // high, high, columns // wide, wide)
    scales = cut.abs().amax((1, 3)) / 448
    narrow = (cut / scales[:, None, :, None]).to(torch.float8_e4m3fn)
    back = (narrow.float() * scales[:, None, :, None]).to(torch.bfloat16)
    return narrow.reshape(rows, columns), scales.reshape(()) if whole else scales, back.reshape(rows, columns)


def in_mxfp4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(pairs, exponents, what they stand for) of experts' weights [experts, in, out]."""
    cut = weight.float().transpose(1, 2).reshape(weight.shape[0], weight.shape[2], -1, 32)
    power = torch.ceil(torch.log2(cut.abs().amax(-1, keepdim=True) / 6))
    index = (cut / torch.exp2(power)).unsqueeze(-1).sub(FP4).abs().argmin(-1)
    back = (FP4[index] * torch.exp2(power)).reshape(weight.shape[0], weight.shape[2], -1).transpose(1, 2)
    pairs = index[..., 0::2] | index[..., 1::2] << 4
    return pairs.to(torch.uint8), (power[..., 0] + 127).to(torch.uint8), back.to(torch.bfloat16).contiguous()


def rewritten(source: Path, folder: Path, tensors: dict[str, Tensor], about: dict[str, Any] | None) -> Path:
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | ({"quantization_config": about} if about else {})))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def fp8_of(source: Path, folder: Path, whole: bool = False) -> tuple[Path, Path]:
    """(a model in FP8, the same in bf16)."""
    narrow: dict[str, Tensor] = {}
    wide: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        narrow[name] = wide[name] = weight
        if weight.ndim == 2 and "embed" not in name and "lm_head" not in name:
            narrow[name], narrow[f"{name}_scale_inv"], wide[name] = in_fp8(weight, whole)
    about = FP8_ABOUT | ({"weight_block_size": None, "activation_scheme": "static"} if whole else {})
    return rewritten(source, folder / "fp8", narrow, about), rewritten(source, folder / "bf16", wide, None)


@pytest.fixture(scope="module", params=["blocks", "whole"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("fp8")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    return fp8_of(model_folder(folder / "source", dtype=torch.bfloat16, **sizes), folder, whole=request.param == "whole")


def weights_of(folder: Path) -> dict[str, Tensor]:
    return {name: weight.float() for name, weight in load_plain(str(folder), None, torch.device("cpu")).named_parameters()}


HELD = [("auto", "fp32"), ("fp32", "fp32"), ("half", "bf16"), ("nf4", "fp32"), ("auto", "fp16")]


@pytest.mark.parametrize(("frozen", "dtype"), HELD)
def test_a_model_in_fp8_is_trained_as_what_it_stands_for_in_16_bits(pair: tuple[Path, Path], frozen: str, dtype: str) -> None:
    if frozen == "nf4":
        pytest.importorskip("bitsandbytes")
    narrow, wide = map(str, pair)
    ours, theirs = read_model(narrow), read_model(wide)
    assert ours.shapes == theirs.shapes and ours.stored == theirs.stored == "BF16" and comes_quantised(ours) is None
    stands = [Stand(folder, settings={"frozen": frozen, "dtype": dtype}, train={"frozen": frozen}) for folder in pair]
    losses = [[stand.step(step) for step in range(1, 4)] for stand in stands]
    assert losses[0] == losses[1] and losses[0][-1] < losses[0][0]
    assert stands[0].saved() == stands[1].saved()


def test_verify_reads_it_as_what_it_stands_for(pair: tuple[Path, Path]) -> None:
    ours, theirs = map(weights_of, pair)
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_all_weights_of_a_model_in_fp8_are_trained_from_16_bits(pair: tuple[Path, Path]) -> None:
    ours, theirs = (Stand(folder, adapter={"type": "full", "r": 8}, train={"lr": 1e-3}) for folder in pair)
    assert [ours.step(step) for step in (1, 2)] == [theirs.step(step) for step in (1, 2)]


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(gpt-oss in MXFP4, the same in bf16)."""
    folder = tmp_path_factory.mktemp("mxfp4")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16, "vocab_size": 96}
    torch.manual_seed(2)
    config = transformers.GptOssConfig(**sizes, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "source")
    narrow: dict[str, Tensor] = {}
    wide: dict[str, Tensor] = {}
    for name, weight in load_file(folder / "source/model.safetensors").items():
        wide[name] = weight
        if name.endswith(("gate_up_proj", "down_proj")):
            narrow[f"{name}_blocks"], narrow[f"{name}_scales"], wide[name] = in_mxfp4(weight)
        else:
            narrow[name] = weight
    about = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]}
    return rewritten(folder / "source", folder / "mxfp4", narrow, about), rewritten(folder / "source", folder / "bf16", wide, None)


def test_experts_in_mxfp4_are_widened_to_what_they_stand_for(experts: tuple[Path, Path]) -> None:
    ours, theirs = (read_model(str(folder)) for folder in experts)
    assert ours.shapes == theirs.shapes and ours.stored == "BF16"
    narrow, wide = map(weights_of, experts)
    assert narrow.keys() == wide.keys() and all(torch.equal(narrow[name], wide[name]) for name in wide)


CUT: list[tuple[dict[str, Tensor], str]] = [
    (
        {"layer.weight_scale_inv": torch.ones(5, 2)},
        r"layer\.weight of \[72, 32\] is not cut evenly into the blocks of its scales of \[5, 2\]",
    ),
    ({}, r"layer\.weight is in FP8 and has no scales beside it"),
]


@pytest.mark.parametrize(("beside", "said"), CUT)
def test_fp8_that_transformers_would_widen_wrongly_is_refused(tmp_path: Path, beside: dict[str, Tensor], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": FP8_ABOUT}))
    save_file({"layer.weight": torch.ones(72, 32).to(torch.float8_e4m3fn), **beside}, tmp_path / "model.safetensors")
    with pytest.raises(Stop, match=said) as stop:
        read_model(str(tmp_path))
    assert "16 bits" in stop.value.hint


def test_a_model_in_fp8_is_not_cut_between_ranks(pair: tuple[Path, Path]) -> None:
    config = Config.model_validate({"model": str(pair[0]), "data": {"files": "x"}, "train": {"fsdp": True, "ranks": 2}})
    with pytest.raises(Stop, match=r"comes in fp8, and train\.fsdp cuts layers"):
        as_it_comes(config, read_model(str(pair[0])))


OTHERS: list[tuple[dict[str, Any], list[str], str]] = [
    ({"quantization_config": {"bits": 4, "group_size": 128, "desc_act": False, "quant_method": "gptq"}}, [], "by gptq in 4 bits"),
    (
        {"quantization_config": {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}},
        [],
        "by awq in 4",
    ),
    (
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}},
        [],
        "compressed-tensors",
    ),
    ({"compression_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}}, [], "compressed-tensors"),
    ({"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}}, [], "by fbgemm_fp8"),
    ({"quantization_config": {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}}}, [], "by hqq"),
    ({"quantization_config": {"quant_method": "aqlm", "nbits_per_codebook": 16, "num_codebooks": 1}}, [], "by aqlm"),
    ({"quantization_config": {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}}, [], "by torchao"),
    ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, [], "by modelopt"),
    ({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}, [], "by fp8"),
    ({"quantization": {"group_size": 64, "bits": 4}}, [], "by an unnamed method in 4 bits"),
    ({}, ["model.layers.0.mlp.up_proj.qweight"], r"by what has tensors like model\.layers\.0\.mlp\.up_proj\.qweight"),
]


@pytest.mark.parametrize(("about", "names", "said"), OTHERS)
def test_other_models_in_few_bits_are_refused_with_a_way_on(about: dict[str, Any], names: list[str], said: str) -> None:
    facts = ModelFacts(Path("m"), about, dict.fromkeys(names, (8, 8)), 0)
    with pytest.raises(Stop, match=said) as stop:
        as_it_comes(Config.model_validate({"model": "m", "data": {"files": "x"}}), facts)
    assert "nf4" in stop.value.hint


def test_doctor_plan_and_train_refuse_it_in_the_same_words(config_of: Any, assets: Any, tmp_path: Path) -> None:
    gptq = {"bits": 4, "group_size": 128, "quant_method": "gptq"}
    model = rewritten(Path(assets.model), tmp_path / "gptq", load_file(Path(assets.model) / "model.safetensors"), gptq)
    config = config_of("gptq", model=str(model))
    for verb in (("doctor", config, "--no-probe"), ("plan", config), ("train", config, "--run", tmp_path / "run")):
        done = holdfast(*verb)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        said = " ".join((done.stdout + done.stderr).split())
        assert "comes quantised (by gptq in 4 bits), which is not read here" in said and "train.frozen: nf4" in said
