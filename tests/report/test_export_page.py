"""The page of an export says what was compared; of one that was refused, why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from holdfast.base_model.folder import ModelFacts
from holdfast.export.card import serve_line, served_with, vllm_takes
from holdfast.export.tensors import tensors_of_file
from holdfast.report.shipped.exported import next_command, page
from holdfast.serve.vllm import start_command

CHECKED: dict[str, Any] = {
    "engine": "llama.cpp",
    "type": "f16",
    "nmse": 3e-6,
    "kl_per_token": 1e-5,
    "top1_agreement": 1.0,
    "positions": 235,
}
CHECKED |= {"greedy_equal": True, "token_ids_equal": True, "stops": True, "prompts": 8}
CHECKED |= {"budget": {"nmse": 1e-4, "kl_per_token": 1e-3, "top1_agreement": 0.95}}


def test_the_page_of_an_export_has_figures_files_and_no_script() -> None:
    coarse = CHECKED | {"type": "q8_0", "budget": {"kl_per_token": 1e-2, "top1_agreement": 0.9}}
    files = [{"path": "/out/<b>.gguf", "bytes": 5559680, "sha256": "ab" * 32}]
    text = page({"checked": CHECKED | {"types": {"f16": CHECKED, "q8_0": coarse}}, "files": files}, "first", "base + adapter")
    assert "it equals base + adapter" in text and "llama.cpp, q8_0" in text and "5,559,680" in text
    assert "<b>" not in text and "<script" not in text and "http" not in text.split("</head>")[1]


def test_the_page_of_a_refused_export_has_its_reasons() -> None:
    answer = {"checked": CHECKED | {"nmse": 0.3, "first_layer": "layer 1"}, "files": [], "reasons": ["NMSE of its logits is 3.00e-01"]}
    text = page(answer, "first", "base + adapter")
    assert "layer 1" in text and "Nothing was written" in text and "NMSE of its logits is 3.00e-01" in text


def test_words_follow_the_counts() -> None:
    greedy = {"equal": 5, "near_tie": 2, "apart": 1, "margin": 0.0123}
    text = page({"checked": CHECKED | {"greedy_equal": False, "greedy": greedy, "token_ids_compared": 0}, "files": []}, "first", "it")
    assert "5 of 8 equal, 2 part at a near-tie (margin at most 0.012), 1 differ" in text and "as in training: not compared" in text
    unseen = {"nmse": 1e-6, "kept": 0.4, "error": 1.0, "seen": False}
    text = page({"checked": CHECKED | {"learned": unseen, "type": "q4_0"}, "files": []}, "first", "it")
    assert "it equals" not in text and "too small to be seen beside the rounding of q4_0 (NMSE 3.0e-06)" in text


@pytest.mark.parametrize(
    ("kind", "out", "told"),
    [
        (
            "adapter",
            "a dir/out",
            "vllm serve org/base --enable-lora --lora-modules tuned='a dir/out' --max-lora-rank 8 --chat-template 'a dir/out'/t.jinja",
        ),
        ("merged", "out", "vllm serve out"),
        ("gguf", "Out", "ollama create out -f Out/Modelfile"),
        ("gguf", "my model.gguf", "llama-server -m 'my model.gguf'"),
        ("gguf-adapter", "lora.gguf", "llama-server -m BASE.gguf --lora lora.gguf"),
    ],
)
def test_an_export_says_what_to_type_next(kind: str, out: str, told: str) -> None:
    assert next_command(kind, Path(out), "org/base", "--max-lora-rank 8 --chat-template PATH/t.jinja") == told


def test_what_vllm_refuses_is_merged_next() -> None:
    assert next_command("adapter", Path("out"), "org/base", None) == "holdfast export out --to merged --out out-merged"
    assert not vllm_takes({"use_dora": True}) and not vllm_takes({"trainable_token_indices": [3]}) and vllm_takes({"r": 8})
    assert vllm_takes({"r": 512}) and not vllm_takes({"r": 8, "rank_pattern": {"q_proj": 513}}), "more than any --max-lora-rank"


def test_a_server_gets_name_and_commit_of_the_base_apart() -> None:
    told = "vllm serve org/base --revision 0a1b --enable-lora --lora-modules tuned=out --max-lora-rank 64"
    assert next_command("adapter", Path("out"), "org/base@0a1b", "--max-lora-rank 64") == told


_Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
_STACK = "base_model.model.model.layers.0.mlp.experts.base_layer.lora_A.weight"
_WRAPPED = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": {}}


@pytest.mark.parametrize(
    ("config", "tensor", "own", "options", "in_card"),
    [
        ({"model_type": "qwen3_moe"}, _STACK, {"r": 8}, None, "stacked experts"),
        (_WRAPPED, _Q, {"r": 8}, None, "answers as the base"),
        ({"model_type": "llama"}, _Q, {"r": 8, "use_dora": True}, None, "vLLM refuses this kind"),
        (
            {"model_type": "llama"},
            _Q,
            {"r": 8},
            "--max-lora-rank 8 --chat-template PATH/chat_template.jinja",
            "tuned=PATH --max-lora-rank 8",
        ),
        (
            {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": {}},
            _Q,  # vllm#34591: with Mistral's own files, Pixtral's class had no such names
            {"r": 8},
            "--max-lora-rank 8 --tokenizer-mode hf --config-format hf --load-format hf",
            "--config-format hf",
        ),
        ({"model_type": "llama"}, _Q, {"r": 8, "rank_pattern": {"q_proj": 33}}, "--max-lora-rank 64", "--max-lora-rank 64"),
    ],
)
def test_the_terminal_recommends_no_server_that_the_card_warns_of(
    config: dict[str, Any], tensor: str, own: dict[str, Any], options: str | None, in_card: str, tmp_path: Path
) -> None:
    base, out, weights = tmp_path / "base", tmp_path / "out", tmp_path / "weights.safetensors"
    base.mkdir(), out.mkdir()
    save_file({tensor: np.zeros((8, 4), np.float32)}, weights)
    if options and "template" in options:
        (out / "chat_template.jinja").write_text("{{ messages }}")
    facts = ModelFacts(base, config | {"eos_token_id": 2}, {}, 0)
    (out / "generation_config.json").write_text('{"eos_token_id": [2]}')
    subject: Any = SimpleNamespace(config={"peft_type": "LORA", **own}, facts=facts, adapter_tensors=tensors_of_file(weights), name="tuned")
    assert served_with(subject, out) == options
    assert in_card in serve_line(subject, out)
    if options:
        shared = options.partition(" --chat-template")[0]
        assert f"--enable-lora {shared} --max-loras 1" in start_command(subject, {"tuned": subject}), "serve says what the card says"
