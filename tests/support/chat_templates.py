"""Small chat templates of the kinds that are published, and a model folder that has one with tiny's tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import Codec, load_codec

_TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
_OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_FOR = "{% for m in messages %}<|im_start|>{{ m.role }}\n"
SHAPES = {
    "plain": _TURN + _OPEN,
    "drops earlier reasoning": "{% set ns = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + _FOR
    + "{% if m.role == 'assistant' and loop.index0 > ns.last %}"
    "<think>\n{{ m.reasoning_content or '' }}\n"
    "</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}" + _OPEN,
    "ends the last turn with another token": _FOR + "{{ m.content }}"
    "{{ '<|endoftext|>' if loop.last and m.role == 'assistant' else '<|im_end|>' }}"
    "{% endfor %}" + _OPEN,
    "closes the last turn twice": _TURN + "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}",
    "always opens a turn": _TURN + "{{ '<|im_start|>assistant\n' }}",
    "opens a thought in its prompt": _FOR + "{{ m.content.split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    "marks what is generated": _FOR + "{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ m.content }}<|im_end|>{% endif %}{% endfor %}" + _OPEN,
    "writes no end": "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT: {% endif %}",
    "ends with the next turn": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}" + _OPEN,
    "calls": _FOR + "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}" + _OPEN,
    "has a channel for reasoning": _FOR + "{% if m.thinking is defined %}<analysis>{{ m.thinking }}</analysis>{% endif %}"
    "{% if m.role == 'assistant' %}<final>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}" + _OPEN,
}


def codec_with(folder: Path, source: str | None, begins: str = "") -> Codec:
    """tiny's tokenizer with a chat template of its own; `begins`: the token it puts before a text."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(EMBEDDED["tiny"] / name, folder / name)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    if begins:
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        number = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == begins)
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": begins, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begins: {"id": begins, "ids": [number], "tokens": [begins]}},
        }
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return load_codec(folder)
