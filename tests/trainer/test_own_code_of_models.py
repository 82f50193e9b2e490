"""What models' own code does with layers and their outputs beyond calling them: a run's start finds a form that it computes with."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.auto_mappings import SPECIAL_MODEL_TYPE_TO_MODULE_NAME as SPECIAL

from conftest import ROOT
from holdfast.base_model.folder import ModelFacts, read_model
from holdfast.base_model.parts import is_router, why_no_lora
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.export.subject import read_subject
from holdfast.machine.heap import heap_environment
from holdfast.planning.memory.trained_size import reached_by_part, trainable_parameters, what_learns
from holdfast.run.plan import Plan
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.jobs.measure import by_token
from holdfast.trainer.model.load import load_base
from holdfast.trainer.model.plain import load_plain
from holdfast.trainer.model.unfit import refuse_unfit
from support.architectures import ARCHITECTURES, GQA, SIZES
from support.shipped import make_adapter
from support.stand import Stand, model_folder

sys.path.insert(0, str(ROOT / "benchmarks" / "models"))

from tiny_model import OWN, make, types

KINDS: dict[str, Any] = {
    "llama4": lambda: transformers.Llama4TextConfig(  # adds what experts give to a layer's output, in place
        **GQA, head_dim=8, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1, attention_chunk_size=64
    ),
    "jamba": lambda: transformers.JambaConfig(  # multiplies with the weight of a layer beside the layer
        **GQA, attn_layer_period=2, attn_layer_offset=1, num_experts=2, use_mamba_kernels=False, mamba_d_state=8
    ),
}
MAMBA = {"vocab_size": 211, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0}
MAMBAS: dict[str, Any] = {
    "mamba": lambda: transformers.MambaConfig(**MAMBA),
    "mamba2": lambda: transformers.Mamba2Config(**MAMBA, num_heads=4, head_dim=16, n_groups=1),
    "falcon_h1": lambda: transformers.FalconH1Config(
        **GQA, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8, mamba_n_groups=1
    ),
}


def folder_of(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ARCHITECTURES, kind, KINDS[kind])
    return model_folder(folder, kind, torch.bfloat16)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_outputs_of_layers_may_be_added_to_in_place(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(folder_of("llama4", tmp_path, monkeypatch), settings={"packing": False, "dtype": dtype})
    assert stand.task.prove()[0].get("frozen") is None
    assert stand.step(1) > 0


def test_weights_are_wide_where_a_models_own_code_takes_no_narrow_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of("jamba", tmp_path, monkeypatch)
    changes, why = Stand(folder, settings={"packing": False}).task.prove()
    assert changes == {"frozen": "fp32"} and "does not compute with weights in 16 bits" in why
    wide = Stand(folder, settings={"packing": False} | changes)
    assert "frozen" not in wide.task.prove()[0]
    assert wide.step(1) > 0


def test_a_failure_that_no_width_explains_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(folder_of("jamba", tmp_path, monkeypatch), settings={"packing": False, "frozen": "fp32"})

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(stand.task.base, "forward", broken)
    with pytest.raises(Refusal, match="no such kernel"):
        stand.task.prove()


def test_a_model_is_measured_with_wide_weights_where_its_code_takes_no_narrow_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_plain(str(folder_of("jamba", tmp_path, monkeypatch)), None, torch.device("cpu"))
    assert model(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False).logits.isfinite().all()


@pytest.mark.parametrize("kind", ["bert", "roformer", "electra"])
def test_a_model_that_sees_the_next_token_is_refused_unless_it_decodes(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"bert": transformers.BertConfig, "roformer": transformers.RoFormerConfig, "electra": transformers.ElectraConfig}[kind]
    for decodes in (False, True):
        monkeypatch.setitem(ARCHITECTURES, kind, lambda: made(**SIZES, embedding_size=32, is_decoder=decodes))  # noqa: B023
        stand = Stand(model_folder(tmp_path / str(decodes), kind), settings={"packing": False, "frozen": "fp32"})
        if decodes:
            stand.task.prove()
            assert stand.step(1) > 0
            continue
        with pytest.raises(Refusal, match="sees the tokens that it is to predict") as refused:
            stand.task.prove()
        assert "set is_decoder to true" in refused.value.hint


@pytest.mark.parametrize("kind", ["roberta", "camembert", "xmod"])
def test_a_decoder_that_generates_with_other_positions_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = {"roberta": transformers.RobertaConfig, "camembert": transformers.CamembertConfig, "xmod": transformers.XmodConfig}[kind]
    own = {"languages": ["en_XX"], "default_language": "en_XX"} if kind == "xmod" else {}
    monkeypatch.setitem(ARCHITECTURES, kind, lambda: made(**SIZES, is_decoder=True, max_position_embeddings=128, **own))
    folder = model_folder(tmp_path / "reads both ways", kind, is_decoder=False)
    with pytest.raises(Refusal, match="sees the tokens") as refused:
        Stand(folder, settings={"packing": False, "frozen": "fp32"}).task.prove()
    assert "give a causal language model" in refused.value.hint
    folder = model_folder(tmp_path / "decoder", kind)
    stand = Stand(folder, settings=LEARNS)
    assert any("lm_head.dense" in name for name in stand.task.trained)
    assert trainable_parameters(stand.task.config, read_model(str(folder))) == sum(one.numel() for one in stand.task.trained.values())
    with pytest.raises(Refusal, match="writes with other positions than it is trained with") as refused:
        stand.task.prove()
    assert "give a causal language model" in refused.value.hint
    model, ids = transformers.AutoModelForCausalLM.from_pretrained(folder), torch.arange(9, 40)[None]
    best = model(input_ids=ids).logits[0, -1].argmax()  # what it learned to write next; transformers writes another token
    assert model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=1, do_sample=False)[0, -1] != best


@pytest.mark.parametrize(
    "error", [TypeError("forward() missing 'pixel_values'"), ValueError("give image_embeds"), IndexError("out of range")]
)
def test_a_model_whose_own_code_fails_on_text_is_refused_with_what_it_says(error: Exception) -> None:
    times = []

    def failing(ids: Any) -> torch.Tensor:
        times.append(1)
        if isinstance(error, IndexError) and len(times) > 1:
            return torch.ones(len(ids), 7)
        raise error

    stream = np.arange(40, dtype=np.int32)
    if isinstance(error, IndexError):  # does not come again
        refuse_unfit(torch.nn.Linear(2, 2), failing, stream, torch.float32, False)
        return
    with pytest.raises(Refusal, match="cannot compute a row of 24 tokens of text alone: .*" + re.escape(str(error)[-12:])):
        refuse_unfit(torch.nn.Linear(2, 2), failing, stream, torch.float32, False)


def test_a_model_whose_own_code_fails_only_while_it_trains_is_refused() -> None:
    model = torch.nn.Linear(2, 2)

    def failing(ids: Any) -> torch.Tensor:
        if model.training:
            raise ValueError("pad to 4096")
        return torch.ones(len(ids), 7)

    with pytest.raises(Refusal, match="24 tokens of text alone while it trains: ValueError: pad to 4096"):
        refuse_unfit(model, failing, np.arange(40, dtype=np.int32), torch.float32, False)


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 have other types"), MemoryError("no room")])
def test_what_may_be_a_matter_of_the_number_format_or_memory_refuses_no_model(error: Exception) -> None:
    def failing(_: Any) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)):
        refuse_unfit(torch.nn.Linear(2, 2), failing, np.arange(40, dtype=np.int32), torch.float32, True)


@pytest.mark.parametrize("shape", [(1, 5, 8), (1, 5, 4, 8), (4, 1, 5, 8)])
def test_hidden_states_are_told_by_token_wherever_streams_stand(shape: tuple[int, ...]) -> None:
    state = torch.arange(float(np.prod(shape))).reshape(shape)
    found = by_token(state)
    assert len(found) == 5
    assert sorted(found[2].tolist()) == sorted((state[:, 0, 2] if shape[0] == 4 else state[0, 2]).flatten().tolist())


def test_layers_that_peft_puts_no_lora_on_are_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, config in MAMBAS.items():
        monkeypatch.setitem(ARCHITECTURES, kind, config)
        stand = Stand(model_folder(tmp_path / kind, kind), settings=LEARNS)
        names = {name.partition(".lora_")[0].rpartition(".")[2] for name in stand.task.trained}
        facts = read_model(str(tmp_path / kind))
        assert "in_proj" in names and "out_proj" not in names and not any("embed" in name for name in names)
        assert kind != "mamba" or not names & {"x_proj", "dt_proj"}, "whose weights its code reads without the layer"
        assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())
        left = "dt_proj, out_proj, x_proj" if kind == "mamba" else "out_proj"
        assert f"{left} (the code of {kind}, or fused code that it calls, would pass over LoRA there)" in told_of(stand, facts)
        assert "out_proj" not in told_of(stand, read_model("tiny"))


LEARNS = {"packing": False, "frozen": "fp32", "all_learn": True}


def told_of(stand: Stand, facts: ModelFacts) -> str:
    return what_learns(cast(Plan, SimpleNamespace(learns={}, weights_by_part={})), stand.task.config, facts)


UNLEARNED = {  # what all-linear leaves out, by its last name
    "deepseek_v32": ({"wq_b", "wk", "weights_proj"}, "chooses what attention sees"),
    "marian": ({"q_proj", "k_proj", "v_proj", "out_proj"}, "reads what an encoder gives"),
    "big_bird": ({"pooler"}, "gives nothing that a next token follows from"),
    "blt": ({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, "chooses where patches of bytes end"),
    "zamba2": ({"0", "1", "q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"}, "is one weight of several layers"),
    "jamba": ({"dt_proj"}, "the code of jamba, or fused code"),
    "gemma3n_text": ({"correction_coefs"}, "the code of gemma3n_text, or fused code"),
    "deepseek_v4": ({"o_a_proj", "wo_a"}, "a layer of deepseek_v4 that computes by groups"),
    "mllama": ({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}, "in a layer that rows without images"),
}


STILL = {  # of which more stays as it began in a tiny model
    "big_bird": "its output layer is behind another one, which the proof of a start finds",
    "deepseek_v4": "it compresses longer rows than these",
}


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")
@pytest.mark.parametrize("kind", UNLEARNED)
def test_all_linear_leaves_out_what_no_gradient_comes_to(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN, "big_bird", {"is_decoder": True, "attention_type": "original_full"})
    monkeypatch.setitem(OWN, "mllama", {"text_config": {"cross_attention_layers": [1]}})
    make(kind, tmp_path, read_model("tiny").folder, 3584)
    facts, stand = read_model(str(tmp_path)), Stand(tmp_path, settings=LEARNS)
    assert stand.step(1) > 0
    names, why = UNLEARNED[kind]
    assert not [
        name for name in stand.task.trained if why_no_lora(facts.config, name.partition(".lora_")[0].removeprefix("base_model.model."))
    ]
    still = [name for name, one in stand.task.trained.items() if ".lora_B." in name and not one.any()]
    assert not still or kind in STILL
    assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())
    names = {name for name in names if any(f".{name}.weight" in one for one in facts.shapes)}
    assert f"{', '.join(sorted(names))} ({why}" in told_of(stand, facts)
    named = stand.task.config.adapter.model_copy(update={"targets": sorted(names)})
    stand.task.config = stand.task.config.model_copy(update={"adapter": named})
    assert f"named in adapter.targets, and may learn nothing: {', '.join(sorted(names))} ({why}" in told_of(stand, facts)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")
def test_a_run_of_before_goes_on_with_the_layers_it_began_with(tmp_path: Path) -> None:
    make("deepseek_v32", tmp_path, read_model("tiny").folder, 3584)
    of_once = Stand(tmp_path, settings={"packing": False, "frozen": "fp32"}).task.trained
    assert any(".indexer." in name for name in of_once)
    assert {name for name in of_once if ".indexer." not in name} == set(Stand(tmp_path, settings=LEARNS).task.trained)


BESIDE = {  # layers whose weight is read, or that are a class of their own, and on which LoRA learns all the same
    ("bloom", "dense"): "only with slow_but_exact and pretraining_tp above 1, which sums the same products in slices",
    ("bloom", "dense_4h_to_h"): "as above",
    ("falcon", "FalconLinear"): "computes as a linear layer does",
    ("gemma3n", "prediction_coefs"): "clips the weight itself, in place, and then calls the layer",
    ("reformer", "value"): "once more, beside the layer; it is refused before row one",
    ("reformer", "query_key"): "as above",
    ("idefics", "IdeficsDecoupledLinear"): "refused before row one",
}
TOLD = ("dtype", "device", "shape", "type", "ndim", "is_cuda")  # of a weight, which is no product


def read_past(tree: ast.Module) -> set[str]:
    """List linear layers whose weight a class reads as it computes, or that compute otherwise than a linear layer does, but for routers."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    other = {one.name for one in classes if any(ast.unparse(base).endswith("Linear") for base in one.bases) and "forward" in methods(one)}
    found = set()
    for one in classes:
        made = {}
        for node in ast.walk(one):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and isinstance(node.value, ast.Call):
                made[node.targets[0].attr] = ast.unparse(node.value.func)
        found |= {made[name] if "Falcon" in made[name] or "Idefics" in made[name] else name for name in made if made[name] in other}
        for name, method in methods(one).items():
            read = [] if "init" in name else weights_read(method)
            found |= {layer for layer in read if made.get(layer, "").endswith("Linear") and layer != "lm_head"}
    return {name for name in found if not is_router(name)}


def methods(one: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in one.body if isinstance(node, ast.FunctionDef)}


def weights_read(method: ast.FunctionDef) -> list[str]:
    """List the layers of self whose weight is used in the method, not only asked for its type or place."""
    asked = [node.value for node in ast.walk(method) if isinstance(node, ast.Attribute) and node.attr in TOLD]
    asked += [
        one for node in ast.walk(method) if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" for one in node.args
    ]
    skipped = {id(node) for node in asked}
    return [
        node.value.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and node.attr == "weight" and isinstance(node.ctx, ast.Load) and id(node) not in skipped
        if isinstance(node.value, ast.Attribute) and isinstance(node.value.value, ast.Name) and node.value.value.id == "self"
    ]


def test_layers_that_transformers_own_code_reads_past_are_known() -> None:
    folder = Path(str(transformers.__file__)).parent / "models"
    unknown, seen = [], set()
    for kind in types():
        name = str(SPECIAL.get(kind, kind)).replace("-", "_")
        file = folder / name / f"modeling_{name}.py"
        for layer in sorted(read_past(ast.parse(file.read_text(encoding="utf-8")))) if file.exists() else ():
            seen.add(layer)
            if (name, layer) not in BESIDE and not why_no_lora({"model_type": kind}, f"model.layers.0.mixer.{layer}"):
                unknown.append(f"{kind}: {layer}")
    assert not unknown
    assert {"out_proj", "dt_proj", "correction_coefs", "o_a_proj"} <= seen, "what it looks for is there"


@pytest.mark.parametrize("half", ["text_config", "llm_config"])
def test_a_wrapped_models_language_half_is_asked_too(half: str) -> None:
    wrapped = {"model_type": "nemotron_h_omni", half: {"model_type": "nemotron_h"}}
    assert why_no_lora(wrapped, "language_model.layers.0.mixer.out_proj")
    assert not why_no_lora(wrapped, "language_model.layers.0.mixer.in_proj")
    assert not why_no_lora(wrapped, "language_model.layers.0.mixer.out_proj", once=True)


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys did not match")  # PEFT's own, of experts it does match
@pytest.mark.parametrize(
    "kind",
    [
        "qwen3_omni_moe_thinker",  # a linear layer of its tower is called 0, as the first decoder layer
        "inkling2_text",  # PEFT renames weights of its convolutions, and would not find their LoRA again
        "mistral4",  # a causal model that transformers lists with those of images alone
    ],
)
def test_all_linear_learns_in_every_layer_of_new_families(kind: str, tmp_path: Path) -> None:
    make(kind, tmp_path, read_model("tiny").folder, 3584)
    stand = Stand(tmp_path, settings=LEARNS)
    layers = {found[1] for name in stand.task.trained if (found := re.search(r"layers\.(\d+)\.self_attn", name))}
    assert {"0", "1"} <= layers and not any("visual" in name or "audio" in name or "sconv" in name for name in stand.task.trained)
    assert stand.step(1) > 0
    facts = read_model(str(tmp_path))
    assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())


def test_a_model_that_asks_which_tokens_are_images_is_told_that_none_is(tmp_path: Path) -> None:
    make("molmo2", tmp_path, read_model("tiny").folder, 3584)
    facts, stand = read_model(str(tmp_path)), Stand(tmp_path, settings=LEARNS)
    assert "own_head" not in stand.task.prove()[0]
    assert stand.step(1) > 0
    assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())
    named = Stand(
        tmp_path, settings=LEARNS, adapter={"targets": ["q_proj", "up_proj"]}
    )  # the file has q, k and v as one layer, up and gate
    assert trainable_parameters(named.task.config, facts) == sum(one.numel() for one in named.task.trained.values())
    assert reached_by_part(named.task.config, facts).keys() == {"attention", "mlp"}


def test_keys_and_values_that_a_layer_takes_from_another_are_none_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of Gemma 3n and 4 have them for every layer; the models of their small sizes have none in the last ones."""
    shared = {"layer_types": ["sliding_attention", "full_attention"] * 3, "num_kv_shared_layers": 2}
    monkeypatch.setitem(OWN, "gemma4_text", shared)
    make("gemma4_text", tmp_path / "model", read_model("tiny").folder, 3584)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    for name in [name for name in tensors if re.search(r"layers\.[01]\.self_attn\.[kv]_", name)]:
        tensors[name.replace("layers.0", "layers.4").replace("layers.1", "layers.5")] = tensors[name].clone()
    save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    facts, stand = read_model(str(tmp_path / "model")), Stand(tmp_path / "model", settings=LEARNS)
    assert stand.step(1) > 0
    assert not [name for name in stand.task.trained if re.search(r"layers\.[45]\.self_attn\.[kv]_proj", name)]
    assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())
    adapter = make_adapter(tmp_path / "model", tmp_path / "adapter", target_modules=["q_proj", "k_proj", "v_proj"])
    assert read_subject(adapter).weights.exists(), "an adapter of PEFT's is whole without them"


def test_an_output_layer_behind_another_layer_is_left_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"input_embedding_size": 32, "output_embedding_size": 64, "is_decoder": True}
    monkeypatch.setitem(ARCHITECTURES, "rembert", lambda: transformers.RemBertConfig(**SIZES, **config))
    stand = Stand(model_folder(tmp_path / "model", "rembert"), settings={"packing": False, "frozen": "fp32"})
    changes, why = stand.task.prove()
    assert changes == {"own_head": True} and "takes 64 numbers and not the 32" in why
    assert Stand(tmp_path / "model", settings={"packing": False, "frozen": "fp32"} | changes).step(1) > 0


def test_a_model_that_writes_no_next_token_is_refused_as_it_is_loaded(tmp_path: Path) -> None:
    make("diffusion_gemma", tmp_path, read_model("tiny").folder, 3584)
    config = Config.model_validate({"model": str(tmp_path), "data": {"files": "x"}})
    with pytest.raises(Refusal, match=r"DiffusionGemmaForBlockDiffusion of .* does not write one token after the other") as refused:
        load_base(config, Settings(steps=1, samples=1, micro_batch_tokens=64, threads=1), torch.device("cpu"))
    assert refused.value.hint == "give a causal language model"


SMALL_BLOCKS = """
from pathlib import Path
from types import SimpleNamespace
import holdfast.trainer.tasks.text.task as of_text

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def compare(config, tokens):
    blocks = [bytes(500) for _ in range(200_000)]
    kept.extend(bytes(500) for _ in range(100))

kept, of_text.compare_readers, of_text.load_tokens = [], compare, lambda file: None
before = resident()
list(of_text.TextTask.look_first(SimpleNamespace(data_file=None), None))
print(resident() - before)
"""


def test_what_two_tokenizers_took_is_given_back_before_the_first_step() -> None:
    environment = os.environ | heap_environment(tight=False)
    found = subprocess.run([sys.executable, "-c", SMALL_BLOCKS], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) < 40 << 20, "of 100 MB in small blocks"
