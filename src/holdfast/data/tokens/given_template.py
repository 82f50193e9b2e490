"""The chat template a run is given (`data.chat_template`), in place of the model's: a file, that of another model, a named one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.file_errors import of_the_file
from holdfast.base.safe_open import read_small
from holdfast.base_model.folder import is_folder, read_description
from holdfast.config.config import Config
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import load_template, pieces
from holdfast.data.tokens.codec import Codec, load_codec

_TURN = "{{ '%s' + message['role'] + '%s' + message['content'] + '%s' }}"
_OPEN = "{%% if add_generation_prompt %%}{{ '%s' }}{%% endif %%}"
_EACH = "{%% for message in messages %%}%s{%% endfor %%}"
_MODEL_TURN = (
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}"
)
NAMED: Mapping[str, str] = {
    "chatml": _EACH % (_TURN % ("<|im_start|>", "\\n", "<|im_end|>\\n")) + _OPEN % "<|im_start|>assistant\\n",
    "llama3": "{{ bos_token }}"
    + _EACH % (_TURN % ("<|start_header_id|>", "<|end_header_id|>\\n\\n", "<|eot_id|>"))
    + _OPEN % "<|start_header_id|>assistant<|end_header_id|>\\n\\n",
    "gemma": "{{ bos_token }}" + _EACH % _MODEL_TURN + _OPEN % "<start_of_turn>model\\n",
}
_ANSWER = "yes"


def template_source(given: str | Mapping[str, str] | None) -> str | None:
    """Return the text of the template that `data.chat_template` means; None without one. Raises Stop where it cannot be had."""
    if given is None:
        return None
    if not isinstance(given, str):
        return _of_model(given["of"])
    if _is_jinja(given):
        return given
    if given in NAMED:
        return NAMED[given]
    file = Path(given).expanduser()
    if not file.is_file():
        text = f"data.chat_template: {given} is no file, and no template of that name ({', '.join(NAMED)})"
        raise Stop(USAGE, text, "give a file of Jinja, one of these names, or of: MODEL")
    try:
        source = read_small(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise Stop(BLOCKED, f"data.chat_template: {file} cannot be read: {of_the_file(error)}", "give a text file of Jinja") from None
    if not _is_jinja(source):
        text = f"data.chat_template: {file} ({len(source):,} characters) has no {{{{ or {{% in it"
        raise Stop(BLOCKED, text, "give a text file of Jinja")
    return source


def _is_jinja(text: str) -> bool:
    return "{{" in text or "{%" in text


def _of_model(model: str) -> str:
    folder = Path(model) if is_folder(Path(model)) else read_description(model).folder
    source = load_template(folder).source
    if source is None:
        raise Stop(BLOCKED, f"data.chat_template: {model} has no chat template", "name a model that has one, or a file")
    return source


def with_template(config: Config) -> Config:
    """Return the config with the text of its template in place of its path: a run goes by the text it was begun with."""
    source = template_source(config.data.chat_template)
    return config if source is None else config.model_copy(update={"data": config.data.model_copy(update={"chat_template": source})})


def codec_of(config: Config, folder: Path) -> Codec:
    """Load the tokenizer of a model folder with the template the config gives, else the folder's. Raises Stop for an unusable one."""
    return codec_with(folder, template_source(config.data.chat_template))


def codec_with(folder: Path, source: str | None) -> Codec:
    """Load the tokenizer of a model folder with this template, None: the folder's. Raises Stop for an unusable one."""
    codec = load_codec(folder, source)
    if source is not None:
        _refuse_unusable(codec)
    return codec


def _refuse_unusable(codec: Codec) -> None:
    """Raise Stop(1) for a template that refuses a question and its answer, or writes no token behind it that ends it."""
    try:
        parts = pieces(Example(messages=(Message("user", "Is it?"), Message("assistant", _ANSWER))), codec.template)
    except BadRow as bad:
        raise Stop(BLOCKED, f"data.chat_template: {bad.detail}", "mend the template, or give another") from None
    behind = "".join(text for text, learned in parts if learned).partition(_ANSWER)[2]
    special = {number for number, token in codec.tokenizer.get_added_tokens_decoder().items() if token.special} | {codec.eos}
    if not special & {*codec.tokenizer.encode(behind, add_special_tokens=False).ids}:
        text = f"data.chat_template writes {behind!r} behind an answer, which is no token that ends one: the model would never stop"
        raise Stop(BLOCKED, text, "have it write {{ eos_token }}, or a special token of this tokenizer, behind each answer")
