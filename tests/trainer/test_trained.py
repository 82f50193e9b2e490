"""Whatever is trained: a step is pure, a state holds all that matters, the artifact is what PEFT or transformers load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file

from conftest import ROOT
from holdfast.base.errors import Stop
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.config.config import Config
from holdfast.export.delta import read_delta
from holdfast.run.adapter_folder import read_start
from holdfast.supervision import publish
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.model.trained.adapters import adapter_config, add_adapter, artifact_tensors
from holdfast.trainer.tasks.text.packing import grouped_batches
from support.architectures import GQA, TERMS
from support.rounding import assert_equal_but_for_rounding, but_for_rounding
from support.stand import Stand, model_folder

sys.path.insert(0, str(ROOT / "benchmarks" / "models"))

from tiny_model import tiny_config

KINDS: dict[str, dict[str, Any]] = {
    "lora": {"type": "lora", "dropout": 0.1},
    "lora+": {"type": "lora", "lr_ratio": 8.0},
    "gaussian": {"type": "lora", "init": "gaussian"},
    "orthogonal": {"type": "lora", "init": "orthogonal"},
    "pissa": {"type": "lora", "init": "pissa"},
    "olora": {"type": "rslora", "init": "olora"},
    "rslora": {"type": "rslora"},
    "dora": {"type": "dora", "dropout": 0.1},
    "adalora": {"type": "adalora", "target_r": 2},
    "prompt": {"type": "prompt", "virtual_tokens": 5},
    "ia3": {"type": "ia3"},
    "head too": {"type": "lora", "modules_to_save": ["lm_head"]},
    "full": {"type": "full"},
    "layers": {"type": "layers", "layers": 1},
    "norms": {"type": "layers", "layers": ["norm", "input_layernorm"]},
}
LATER = ("lora", "gaussian", "orthogonal", "rslora", "norms")  # as the others, in the long tests


def some(kinds: dict[str, Any]) -> list[Any]:
    return [pytest.param(kind, id=kind, marks=[pytest.mark.long] if kind in LATER else []) for kind in kinds]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stored in 16 bits, as most are; computed with in fp32."""
    return model_folder(tmp_path_factory.mktemp("model"), dtype=torch.bfloat16)


@pytest.mark.parametrize("kind", some(KINDS))
def test_a_state_holds_all_that_later_steps_need_and_a_split_step_is_the_same_step(model: Path, kind: str) -> None:
    stand = Stand(model, adapter=KINDS[kind])
    losses = [stand.step(step) for step in range(1, 7)]
    kept = stand.saved()
    losses += [stand.step(step) for step in range(7, 10)]
    again = Stand(model, adapter=KINDS[kind])
    again.restore(kept)
    assert [again.step(step) for step in range(7, 10)] == losses[6:]
    assert again.saved() == stand.saved()
    assert losses[-1] < losses[0]
    whole, split = stand.compute(11), stand.compute(11, budget=45)
    assert split.loss == but_for_rounding(whole.loss, TERMS) and split.grad_norm == but_for_rounding(whole.grad_norm, TERMS)


def test_a_state_of_other_tensors_is_refused_with_one_of_them(model: Path) -> None:
    kept = Stand(model, adapter=KINDS["full"]).saved()
    with pytest.raises(Refusal, match=r"step 0 .* other tensors: \['.*embed_tokens\.weight.* \(\d+ differ\)") as refusal:
        Stand(model, adapter=KINDS["layers"]).restore(kept)
    assert refusal.value.cause == "checkpoint_model_mismatch" and "--run DIR" in refusal.value.hint


def written(stand: Stand, folder: Path) -> Path:
    folder.mkdir()
    (folder / stand.task.form.weights_name).write_bytes(stand.artifact.to_bytes())
    (folder / stand.task.form.config_name).write_text(json.dumps(stand.task.form.config))
    return folder


def loaded(model: Path, folder: Path, stand: Stand) -> Any:
    """The model as anybody would load it."""
    if stand.task.form.kind == "adapter":
        return PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), folder).eval()
    own = transformers.AutoModelForCausalLM.from_pretrained(model if stand.task.form.partial else folder, dtype=torch.float32)
    own.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    return own.eval()


@pytest.mark.parametrize("kind", some(KINDS))
def test_the_artifact_is_what_others_load_and_gives_the_loss_it_was_left_with(model: Path, kind: str, tmp_path: Path) -> None:
    stand = Stand(model, adapter=KINDS[kind])
    for step in range(1, 4):
        stand.step(step)
    stand.task.model.eval()
    ours = stand.compute(4).loss
    own = loaded(model, written(stand, tmp_path / "artifact"), stand)
    total, labels = 0.0, 0
    for batch in grouped_batches(stand.task.tokens, stand.rows, 1, torch.device("cpu")):
        with torch.no_grad():
            logits = own(input_ids=batch.ids).logits[:, -batch.ids.shape[1] :].flatten(0, 1)[batch.label_at]
        total += float(torch.nn.functional.cross_entropy(logits, batch.label_ids, reduction="sum"))
        labels += batch.labels
    assert ours == but_for_rounding(total / labels, TERMS)


@pytest.mark.parametrize("adapter", [{"type": "dora"}, {"init": "orthogonal"}, {"type": "dora", "init": "orthogonal"}])
def test_an_adapter_begins_on_a_base_of_16_bits_and_peft_loads_it_so(model: Path, adapter: dict[str, Any], tmp_path: Path) -> None:
    """PEFT begins both in the type of the weight, whose rounding moved each row from the first step on."""
    plain, stand = Stand(model).compute(1).loss, Stand(model, adapter=adapter, settings={"exact_start": True})
    assert stand.compute(1).loss == but_for_rounding(plain, TERMS)
    assert Stand(model, adapter=adapter).compute(1).loss != but_for_rounding(plain, TERMS), "an older run folder goes on as it began"
    ids, folder = torch.arange(1, 30)[None], written(stand, tmp_path / "artifact")
    for dtype in (torch.float32, torch.bfloat16)[: 1 + ("init" not in adapter)]:  # BA of an orthogonal start is no 0 in a base of 16 bits
        base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        with torch.no_grad():
            expected = base(input_ids=ids).logits
            found = PeftModel.from_pretrained(base, folder).eval()(input_ids=ids).logits
        assert_equal_but_for_rounding(found, expected, TERMS)


@pytest.mark.parametrize("targets", [r".*\.(k_proj|v_proj|down_proj)", ["self_attn.k_proj", "self_attn.v_proj", "mlp.down_proj"]])
def test_ia3_scales_what_peft_scales_however_its_modules_are_named(model: Path, targets: str | list[str], tmp_path: Path) -> None:
    """Of down_proj the inputs, 48 numbers: with a pattern it was the outputs."""
    stands = [
        Stand(model, adapter={"type": "ia3", "targets": one}, settings={"exact_start": exact})
        for one, exact in ((targets, True), ("all-linear", False), (targets, False))
    ]
    losses = [[stand.step(step) for step in (1, 2, 3)] for stand in stands]
    assert losses[0] == losses[1] != losses[2], "an older run folder goes on as it began"
    with torch.no_grad():
        of = [loaded(model, written(one, tmp_path / name), one) for one, name in zip(stands, ("named", "linear", "older"), strict=True)]
        named, linear, older = (one(input_ids=torch.arange(1, 30)[None]).logits for one in of)
    assert torch.equal(named, linear) and not torch.equal(named, older)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_a_start_from_the_weights_is_of_the_matrix_that_computes_in_gpt2_too(tmp_path: Path, init: str) -> None:
    """GPT-2's layers keep their matrices the other way round."""
    model = model_folder(tmp_path / "model", "gpt2")
    stand = Stand(model, adapter={"type": "lora", "init": init}, settings={"packing": False})
    assert stand.step(1) > 0
    stand = Stand(model, adapter={"type": "lora", "init": init})
    layers = [one for one in stand.task.model.modules() if isinstance(one, LoraLayer) and "default" in one.lora_A]
    assert layers
    for layer in layers:
        weight = layer.get_base_layer().weight.float().t()
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        rank = len(a) // 2
        begun = (layer.scaling["default"] if init == "pissa" else 1.0) * b[:, :rank] @ a[:rank]
        most = 1.001 * torch.linalg.svdvals(weight)[rank:].norm() if init == "pissa" else weight.norm()
        assert float((weight - begun).detach().norm()) < float(most)


def test_a_rank_that_a_weight_has_not_is_refused_where_it_begins_with_the_weights(model: Path) -> None:
    with pytest.raises(Refusal, match="begins with 64 directions") as refused:
        Stand(model, adapter={"type": "lora", "init": "pissa", "r": 64})
    assert "adapter.r: 16, or less" in refused.value.hint


def test_a_start_from_the_weights_changes_nothing_until_a_step_is_made_and_its_kept_half_never(model: Path) -> None:
    plain = Stand(model, adapter={"type": "lora"}).compute(1).loss
    for init in ("pissa", "olora"):
        stand = Stand(model, adapter={"type": "lora", "init": init})
        before = {name: weight.detach().clone() for name, weight in stand.task.artifact.items()}
        assert stand.compute(1).loss == but_for_rounding(plain, TERMS)
        stand.step(1)
        for name, weight in stand.task.artifact.items():
            side = 0 if "lora_A" in name else 1
            free, kept = weight.detach().tensor_split(2, dim=side)
            assert torch.equal(kept, before[name].tensor_split(2, dim=side)[1]) and not torch.equal(
                free, before[name].tensor_split(2, dim=side)[0]
            )


def test_a_larger_rate_moves_the_second_matrices_further(model: Path) -> None:
    moved = {}
    for name, adapter in (("plain", {}), ("plus", {"lr_ratio": 8.0})):
        stand = Stand(model, adapter=adapter)
        stand.step(1)
        moved[name] = {key: float(weight.detach().norm()) for key, weight in stand.task.artifact.items() if "lora_B" in key}
    assert all(moved["plus"][key] == but_for_rounding(8 * norm, TERMS) for key, norm in moved["plain"].items())


def test_ranks_fall_to_the_budget_and_stay_there(model: Path) -> None:
    stand = Stand(model, adapter=KINDS["adalora"])
    ranks = []
    for step in range(1, 13):
        stand.step(step)
        ranks.append(sum(int((weight != 0).sum()) for name, weight in stand.task.artifact.items() if "lora_E" in name))
    layers = sum("lora_E" in name for name in stand.task.artifact)
    assert ranks[0] == 4 * layers and ranks[-1] == ranks[-2] == 2 * layers


BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "layers", "layers": 7}, "adapter.layers is 7, the model has 2 layers"),
    ({"type": "layers", "layers": ["attn_x"]}, "no weight of the model has such a name"),
    ({"targets": ["q_porj"]}, "q_porj"),
    ({"targets": ["q_porj", "v_proj"]}, "adapter.targets names q_porj, and this model has no such layer"),
    ({"modules_to_save": ["lm_haed"]}, "lm_haed"),
    ({"modules_to_save": ["embed_tokens"], "trainable_token_indices": [3]}, "embed_tokens, of which trainable_token_indices trains some"),
]


@pytest.mark.parametrize(("adapter", "said"), BAD)
def test_names_that_the_model_has_not_are_told(model: Path, adapter: dict[str, Any], said: str) -> None:
    with pytest.raises(Refusal, match=said):
        Stand(model, adapter=adapter, settings={"exact_start": True})
    if isinstance(adapter.get("targets"), list) and "v_proj" in adapter["targets"]:
        assert Stand(model, adapter=adapter), "a run that began before goes on as it was"


def test_an_output_layer_that_is_the_table_of_trained_tokens_is_told(tmp_path: Path) -> None:
    tied = model_folder(tmp_path, lambda: transformers.LlamaConfig(**GQA, tie_word_embeddings=True))
    tokens = {"trainable_token_indices": [3]}
    with pytest.raises(Refusal, match="names lm_head, one weight with the embeddings in this model, of which") as told:
        Stand(tied, adapter=tokens | {"modules_to_save": ["lm_head"]})
    assert told.value.hint.startswith("leave modules_to_save out") and Stand(tied, adapter=tokens)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"type": "full", "init": "pissa"}, "init belongs to type lora"),
    ({"type": "layers"}, "needs layers"),
    ({"type": "lora", "target_r": 2}, "target_r belongs to type adalora"),
    ({"type": "adalora", "r": 4, "target_r": 6}, "target_r is 6"),
    ({"type": "lora", "r": 3, "init": "orthogonal"}, "even r"),
    ({"type": "prompt", "modules_to_save": ["lm_head"]}, "modules_to_save belongs to"),
]


@pytest.mark.parametrize(("adapter", "said"), WRONG)
def test_keys_of_another_kind_are_told(adapter: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": adapter})


def tiny(kind: str) -> Any:
    """A random model of this type without a folder."""
    config = tiny_config(kind, 256)
    wrapped = hasattr(config, "text_config")
    auto = transformers.AutoModelForImageTextToText if wrapped else transformers.AutoModelForCausalLM
    return auto.from_config(config)


@pytest.mark.parametrize("kind", ["laguna", "unlimited_ocr", "mistral_large4"])
@pytest.mark.filterwarnings("error:Found missing adapter keys")
def test_an_adapter_is_saved_under_names_that_peft_finds_again(kind: str, tmp_path: Path) -> None:
    config = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": {"r": 2}})
    made = add_adapter(tiny(kind), config)
    tensors = {name: torch.full_like(one, 0.5) for name, one in artifact_tensors(made).items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter_config(made, "tiny")))
    again = PeftModel.from_pretrained(tiny(kind), tmp_path)
    adapters = [one for name, one in again.named_parameters() if ".lora_" in name]
    assert sum(one.numel() for one in adapters) == sum(one.numel() for one in tensors.values())
    assert all(bool((one == 0.5).all()) for one in adapters)


def test_an_adapter_that_peft_would_lose_is_refused_and_without_those_modules_it_is_made() -> None:
    tree = {"model": "tiny", "data": {"files": "x"}, "adapter": {"r": 2, "targets": ["q_proj", "weight_proj"]}}
    with pytest.raises(Refusal, match=r"does not find an adapter of model.layers.5.self_attn.k_sconv.weight_proj") as refusal:
        artifact_tensors(add_adapter(tiny("inkling2_text"), Config.model_validate(tree)))
    targets = refusal.value.hint.partition("[")[2].partition("]")[0].split(", ")
    for given in ({"r": 2, "targets": targets}, {"r": 2}):
        made = artifact_tensors(add_adapter(tiny("inkling2_text"), Config.model_validate(tree | {"adapter": given})))
        assert made and not any("weight_proj" in name for name in made), "all-linear leaves them out by itself"


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings")
def test_layers_that_are_one_weight_are_refused_and_without_them_an_adapter_is_made() -> None:
    tree = {"model": "tiny", "data": {"files": "x"}, "adapter": {"r": 2, "targets": ["q_proj", "in_proj"]}}
    with pytest.raises(Refusal, match=r"layers.2.shared_transf\S+ and model.layers.7.shared_transf\S+ are one weight") as refusal:
        add_adapter(tiny("zamba"), Config.model_validate(tree))
    targets = refusal.value.hint.partition("[")[2].partition("]")[0].split(", ")
    assert artifact_tensors(add_adapter(tiny("zamba"), Config.model_validate(tree | {"adapter": {"r": 2, "targets": targets}})))
    every = Config.model_validate(tree | {"adapter": {"r": 2}})
    assert artifact_tensors(add_adapter(tiny("zamba"), every)), "all-linear leaves them out"
    tied = Config.model_validate(tree | {"adapter": {"r": 2, "targets": ["embed_tokens", "q_proj"]}})
    model = transformers.AutoModelForCausalLM.from_config(tiny_config("gemma3_text", 256))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert artifact_tensors(add_adapter(model, tied)), "a table that is the output layer, too, gets one of its own when it is merged"


def test_all_linear_leaves_no_name_in_the_file_of_a_module_that_was_left_alone() -> None:
    config = Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": {"r": 2}})
    made = add_adapter(tiny("llama4"), config)
    named = adapter_config(made, "tiny")["target_modules"]
    assert "q_proj" in named and "router" not in named, "AutoModelForCausalLM has it under another path, where nothing leaves it out"


def test_the_output_layer_of_mistrals_own_files_is_no_layer_an_adapter_sits_on(tmp_path: Path) -> None:
    names = ("output", "tok_embeddings", "layers.0.attention.output", "layers.0.attention.wq")
    facts = ModelFacts(tmp_path, {}, {f"{name}.weight": (64, 32) for name in names}, 0)
    assert {*facts.linear()} == {"layers.0.attention.output", "layers.0.attention.wq"}


@pytest.mark.filterwarnings("ignore:fan_in_fan_out", "ignore:Model has `tie_word_embeddings", "ignore:Model with `tie_word_embeddings")
def test_an_adapter_on_gpt2s_output_layer_too_says_that_its_square_layers_are_kept_the_other_way_round(tmp_path: Path) -> None:
    """PEFT leaves in the config what the last layer is; a square matrix alone does not tell how it is kept."""
    model = model_folder(tmp_path / "model", "gpt2")
    stand = Stand(model, adapter={"type": "lora", "targets": ["c_attn", "attn.c_proj", "lm_head"]}, settings={"packing": False})
    stand.step(1)
    folder = written(stand, tmp_path / "adapter")
    own = loaded(model, folder, stand).merge_and_unload().transformer.h[0].attn.c_proj.weight.detach()
    name, shapes = "transformer.h.0.attn.c_proj.weight", read_model(str(model)).shapes
    delta = read_delta(folder / "adapter_model.safetensors", stand.task.form.config, shapes, "transformer.wte.weight")
    base = load_file(model / "model.safetensors")[name]
    assert base.shape[0] == base.shape[1]
    changed = torch.from_numpy(delta.changes[name].applied(base.numpy(), 0, len(base)))
    assert torch.allclose(changed, own, rtol=0, atol=1e-6) and not torch.allclose(base, own, rtol=0, atol=1e-4)


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora"])
def test_an_adapter_for_which_peft_changes_the_base_as_it_loads_it_is_no_start(model: Path, init: Any, tmp_path: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=init)).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert all(one.abs().max() > 0 for one in tensors.values()), "nothing was learned, and the matrices are a part of the base"
    with pytest.raises(Stop, match=f"init_lora_weights '{init}'"):
        read_start(tmp_path)
    file = tmp_path / "adapter_config.json"
    plain = json.loads(file.read_text()) | {"init_lora_weights": True}
    file.write_text(json.dumps(plain))
    assert read_start(tmp_path).tensors.keys() == tensors.keys()
    file.write_text(json.dumps(plain | {"alora_invocation_tokens": [5]}))
    with pytest.raises(Stop, match=r"alora_invocation_tokens: \[5\]"):
        read_start(tmp_path)


@pytest.mark.parametrize(("adapter", "learned"), [({"type": "full"}, True), ({"type": "layers", "layers": 1}, False)])
def test_a_tied_model_whose_files_have_the_output_layer_too_is_left_tied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: dict[str, Any], learned: bool
) -> None:
    """As Qwen3-0.6B's: beside an embedding that was trained the old output layer would be another weight for transformers."""
    base = model_folder(tmp_path / "base", lambda: transformers.LlamaConfig(**GQA, tie_word_embeddings=True))
    file, table = base / "model.safetensors", "model.embed_tokens.weight"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors[table].clone()}, file, {"format": "pt"})
    for name in ("codec_of", "write_companions"):
        monkeypatch.setattr(publish, name, lambda *_: None)
    stand = Stand(base, adapter=adapter)
    stand.step(1)
    run: Any = SimpleNamespace(path=tmp_path, config=lambda: None)
    folder, partial = written(stand, tmp_path / "state"), stand.task.form.partial
    state: Any = SimpleNamespace(folder=folder, kind="model", artifact_sha256="", partial=partial)
    publish.publish_artifact(run, state, base)
    own = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    assert own.lm_head.weight is own.model.embed_tokens.weight
    assert torch.equal(own.lm_head.weight, stand.task.artifact[table] if learned else tensors[table])
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert ("lm_head.weight" in stored) == (not learned), "what was not trained stays as it is stored"
