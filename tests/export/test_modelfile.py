"""The chat template in Ollama's language: a system message has its place wherever the model's own template has one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.data.judge.turns import Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.export.gguf.modelfile import modelfile
from support.chat_templates import SHAPES, codec_with

OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
DEFAULT = "<|im_start|>system\nYou are an assistant, made by T.<|im_end|>\n"
TEMPLATES = {
    "a turn of its own": SHAPES["plain"],
    "in place of a default one": "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    + DEFAULT
    + "{% endif %}"
    + TURN
    + OPEN,
    "in the first question": "{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}{% else %}"
    "<|im_start|>{{ m.role }}\n{{ ns.system if m.role == 'user' else '' }}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}" + OPEN,
}
TEMPLATES["in the first question"] = "{% set ns = namespace(system='') %}" + TEMPLATES["in the first question"]
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + SHAPES["plain"]


def filled(template: str, prompt: str, answer: str, system: str = "") -> str:
    """What Ollama makes of a TEMPLATE: {{ if .System }}, {{ else }}, {{ end }} and the three fields."""
    choice = re.compile(r"\{\{ if \.System \}\}(.*?)(?:\{\{ else \}\}(.*?))?\{\{ end \}\}", re.S)
    text = choice.sub(lambda found: found[1] if system else found[2] or "", template)
    return text.replace("{{ .System }}", system).replace("{{ .Prompt }}", prompt).replace("{{ .Response }}", answer)


def template_in(text: str) -> str:
    return text.partition('TEMPLATE """')[2].partition('"""')[0]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_ollama_writes_a_conversation_as_the_model_does(tmp_path: Path, kind: str) -> None:
    codec = codec_with(tmp_path / "model", TEMPLATES[kind])
    text = modelfile(codec, "it.gguf", None, "")
    for system in ("", "Answer in one word. HOLDFAST"):
        turns = (*([Message("system", system)] if system else []), Message("user", "What lists files?"), Message("assistant", "ls"))
        wanted = "".join(part for part, _ in pieces(Example(messages=turns), codec.template))
        assert filled(template_in(text), "What lists files?", "ls", system) == wanted
    assert "#" not in text


@pytest.mark.parametrize(
    "source", [REFUSES, SHAPES["plain"].replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")]
)
def test_where_a_system_message_has_no_effect_that_is_said(tmp_path: Path, source: str) -> None:
    text = modelfile(codec_with(tmp_path / "model", source), "it.gguf", None, "")
    assert "# a system message has no effect" in text and "{{ .Prompt }}" in template_in(text) and ".System" not in text


def test_what_the_file_puts_before_a_text_is_not_written_twice(tmp_path: Path) -> None:
    codec = codec_with(tmp_path / "model", None, "<|im_start|>")
    assert codec.bos and codec.template.lead == "<|im_start|>"
    assert template_in(modelfile(codec, "it.gguf", None, codec.template.lead)).startswith("{{ if .System }}### System:")
    assert template_in(modelfile(codec, "it.gguf", None, "")).startswith("<|im_start|>")
