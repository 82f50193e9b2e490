"""What models' own code does with layers and their outputs beyond calling them: a run's start finds a form that it computes with."""

from __future__ import annotations

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

from conftest import ROOT
from holdfast.base_model.folder import read_model
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.machine.heap import heap_environment
from holdfast.planning.memory.trained_size import trainable_parameters, what_learns
from holdfast.run.plan import Plan
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.jobs.measure import by_token
from holdfast.trainer.model.load import load_base
from holdfast.trainer.model.plain import load_plain
from holdfast.trainer.model.unfit import refuse_unfit
from support.architectures import ARCHITECTURES, GQA, SIZES
from support.stand import Stand, model_folder

sys.path.insert(0, str(ROOT / "benchmarks" / "models"))

from tiny_model import make

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
    with pytest.raises(Refusal, match="cannot compute a row of text alone: .*" + re.escape(str(error)[-12:])):
        refuse_unfit(torch.nn.Linear(2, 2), failing, stream, torch.float32, False)


def test_a_model_whose_own_code_fails_only_while_it_trains_is_refused() -> None:
    model = torch.nn.Linear(2, 2)

    def failing(ids: Any) -> torch.Tensor:
        if model.training:
            raise ValueError("pad to 4096")
        return torch.ones(len(ids), 7)

    with pytest.raises(Refusal, match="pad to 4096"):
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
        stand = Stand(model_folder(tmp_path / kind, kind), settings={"packing": False, "frozen": "fp32"})
        names = {name.partition(".lora_")[0].rpartition(".")[2] for name in stand.task.trained}
        facts = read_model(str(tmp_path / kind))
        assert "in_proj" in names and "out_proj" not in names and not any("embed" in name for name in names)
        assert kind != "mamba" or not names & {"x_proj", "dt_proj"}, "whose weights its code reads without the layer"
        assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())
        plan = SimpleNamespace(learns={}, weights_by_part={})
        told = what_learns(cast(Plan, plan), stand.task.config, facts)
        left = "dt_proj, out_proj, x_proj" if kind == "mamba" else "out_proj"
        assert f"{left} (fused code of {facts.config['model_type']} would pass over LoRA there)" in told
        assert "out_proj" not in what_learns(cast(Plan, plan), stand.task.config, read_model("tiny"))


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
    stand = Stand(tmp_path, settings={"packing": False, "frozen": "fp32"})
    layers = {found[1] for name in stand.task.trained if (found := re.search(r"layers\.(\d+)\.self_attn", name))}
    assert {"0", "1"} <= layers and not any("visual" in name or "audio" in name or "sconv" in name for name in stand.task.trained)
    assert stand.step(1) > 0
    facts = read_model(str(tmp_path))
    assert trainable_parameters(stand.task.config, facts) == sum(one.numel() for one in stand.task.trained.values())


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

kept, of_text.compare_readers = [], compare
before = resident()
stand = SimpleNamespace(config=None, tokens=None, compared=None, notes=["one"])
next(of_text.TextTask.remarks(stand, True))
print(resident() - before)
"""


def test_what_two_tokenizers_took_is_given_back_before_the_first_step() -> None:
    environment = os.environ | heap_environment(tight=False)
    found = subprocess.run([sys.executable, "-c", SMALL_BLOCKS], env=environment, capture_output=True, text=True, check=True)
    assert int(found.stdout.split()[-1]) < 40 << 20, "of 100 MB in small blocks"
