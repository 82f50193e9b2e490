"""The embedded base model: small, whole, loaded like any Hugging Face folder."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from holdfast.base_model.folder import EMBEDDED, read_model
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import Example, Message
from holdfast.data.templates.chat_template import load_template, pieces
from holdfast.data.tokens.codec import Tokens, load_codec

FOLDER = EMBEDDED["tiny"]
TURNS = [
    {"role": "user", "content": "Open port 8443/tcp in zone dmz, it's for /srv/café."},
    {"role": "assistant", "content": "firewall-cmd 8443"},
]


def test_it_is_a_qwen2_of_at_most_five_million_parameters_in_bf16() -> None:
    facts = read_model("tiny")
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert facts.config["architectures"] == ["Qwen2ForCausalLM"]
    assert sum(parameter.numel() for parameter in model.parameters()) <= 5_000_000
    assert model.dtype == torch.bfloat16
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 12 << 20


def test_its_padding_is_not_its_end_of_text() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    assert load_codec(FOLDER).pad == tokenizer.pad_token_id
    assert read_model("tiny").config["pad_token_id"] == tokenizer.pad_token_id


def test_transformers_and_holdfast_cut_and_frame_text_alike() -> None:
    codec, theirs = load_codec(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    example = Example(messages=tuple(Message(turn["role"], turn["content"]) for turn in TURNS))
    tokens = codec.encode([pieces(example, load_template(FOLDER))], Rules(max_tokens=512))[0]
    text = theirs.apply_chat_template(TURNS, tokenize=False)
    assert isinstance(tokens, Tokens)
    assert tokens.ids == theirs(text, add_special_tokens=False)["input_ids"]
    assert theirs.decode(tokens.ids) == text
