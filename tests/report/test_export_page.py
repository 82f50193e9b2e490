"""The page of an export says what was compared; of one that was refused, why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.export.card import vllm_takes
from holdfast.report.shipped.exported import next_command, page

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
        ("adapter", "a dir/out", "vllm serve org/base --enable-lora --lora-modules tuned='a dir/out'"),
        ("merged", "out", "vllm serve out"),
        ("gguf", "Out", "ollama create out -f Out/Modelfile"),
        ("gguf", "my model.gguf", "llama-server -m 'my model.gguf'"),
        ("gguf-adapter", "lora.gguf", "llama-server -m BASE.gguf --lora lora.gguf"),
    ],
)
def test_an_export_says_what_to_type_next(kind: str, out: str, told: str) -> None:
    assert next_command(kind, Path(out), "org/base") == told


def test_what_vllm_refuses_is_merged_next() -> None:
    assert next_command("adapter", Path("out"), "") == "holdfast export out --to merged --out out-merged"
    assert not vllm_takes({"use_dora": True}) and not vllm_takes({"trainable_token_indices": [3]}) and vllm_takes({"r": 8})


def test_a_server_gets_name_and_commit_of_the_base_apart() -> None:
    told = "vllm serve org/base --revision 0a1b --enable-lora --lora-modules tuned=out"
    assert next_command("adapter", Path("out"), "org/base@0a1b") == told
