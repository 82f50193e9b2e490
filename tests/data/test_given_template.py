"""A run's chat template: where it comes from, what is refused, and that the plain form is written as it was trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from transformers import AutoTokenizer

from holdfast.base.errors import Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.config.config import Config
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.tokens.codec import Tokens
from holdfast.data.tokens.given_template import NAMED, codec_of, with_template
from holdfast.data.tokens.plain_form import written_template
from holdfast.data.tokens.prompt import prompt_ids
from holdfast.export.card import _template
from holdfast.export.endings import copy_tokenizer
from holdfast.run.folder import RunFolder
from holdfast.supervision.publish import publish_artifact

TINY = EMBEDDED["tiny"]
TURNS = (Message("user", "Is it?"), Message("assistant", "It is."), Message("user", "And now?"))
MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content + '<|im_end|>\\n' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

ENDLESS = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def config_with(given: object) -> Config:
    return Config.model_validate({"model": "tiny", "data": {"files": ["rows.jsonl"], "chat_template": given}})


@pytest.fixture
def without_template(tmp_path: Path) -> Path:
    """A base model's tokenizer that has no chat template."""
    folder = tmp_path / "base"
    folder.mkdir()
    shutil.copyfile(TINY / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((TINY / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("given", [None, "chatml", MARKED])
def test_what_is_trained_is_what_the_artifact_renders(given: str | None, without_template: Path, tmp_path: Path) -> None:
    codec = codec_of(config_with(given), without_template)
    out = tmp_path / "out"
    out.mkdir()
    copy_tokenizer(codec, out)
    (row,) = codec.encode([pieces(Example(messages=(*TURNS, Message("assistant", "x"))), codec.template)], Rules(max_tokens=999))
    assert isinstance(row, Tokens)
    trained = row.ids[: len(row.ids) - next(at for at, learned in enumerate(reversed(row.learned)) if not learned)]
    turns = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    theirs = AutoTokenizer.from_pretrained(out).apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert theirs == trained, (codec.tokenizer.decode(theirs), codec.tokenizer.decode(trained))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{{ raise_exception('no such role') }}", "no such role"),
        (ENDLESS, "never stop"),
        ("{% for m in messages %}{{ m.content }}", "cannot be used"),
        ("{% for m in messages %}\n{{ m.content }", "line 2: unexpected '}'"),
        ("llama3", "never stop"),
        ("no-such-file.jinja", "no file"),
        ({"of": "/no/such/model"}, "/no/such/model"),
    ],
)
def test_a_template_that_is_no_use_is_refused(given: object, told: str, without_template: Path) -> None:
    with pytest.raises(Stop) as stop:
        codec_of(config_with(given), without_template)
    assert told in stop.value.message + stop.value.hint


@pytest.mark.parametrize("text", ["", "assistant:"])
def test_a_file_that_is_no_jinja_is_told_by_its_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(text)
    with pytest.raises(Stop, match=rf"mine.jinja \({len(text)} characters\) has no"):
        with_template(config_with(str(tmp_path / "mine.jinja")))


def test_a_run_keeps_the_text_of_its_template(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(NAMED["chatml"])
    for given in ("chatml", str(tmp_path / "mine.jinja")):
        assert with_template(config_with(given)).data.chat_template == NAMED["chatml"]
    of_tiny = with_template(config_with({"of": "tiny"})).data.chat_template
    assert isinstance(of_tiny, str) and "{%" in of_tiny


@pytest.mark.parametrize("given", [None, "chatml", MARKED])
@pytest.mark.parametrize("of_base", ["its own", "another", "none"])
def test_what_a_run_leaves_renders_and_ends_as_it_was_trained(
    given: str | None, of_base: str, without_template: Path, tmp_path: Path
) -> None:
    if of_base == "another":
        (without_template / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.content }}]{{ eos_token }}{% endfor %}")
    if of_base == "its own":  # in tokenizer_config.json
        shutil.copyfile(TINY / "tokenizer_config.json", without_template / "tokenizer_config.json")
    for file in ("config.json", "model.safetensors"):
        shutil.copyfile(TINY / file, without_template / file)
    (without_template / "generation_config.json").write_text('{"_from_model_config": true, "eos_token_id": 0, "top_k": 7}')
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        (checkpoint / file).write_text("{}")
    run = SimpleNamespace(path=tmp_path, config=lambda: config_with(given))
    state: Any = SimpleNamespace(kind="adapter", folder=checkpoint, artifact_sha256="", partial=False)
    publish_artifact(cast(RunFolder, run), state, without_template)
    codec, turns = codec_of(config_with(given), without_template), [{"role": turn.role, "content": turn.content} for turn in TURNS]
    theirs = AutoTokenizer.from_pretrained(tmp_path / "adapter").apply_chat_template(turns, add_generation_prompt=True, return_dict=True)
    assert theirs["input_ids"] == prompt_ids(codec, TURNS, 999)
    settings = json.loads((tmp_path / "adapter/generation_config.json").read_text())
    assert settings == {"eos_token_id": [2, 0], "top_k": 7, "pad_token_id": 3}
    in_file = json.loads((tmp_path / "adapter/tokenizer_config.json").read_text()).get("chat_template")
    assert in_file in (None, written_template(codec))


@pytest.mark.parametrize("given", [None, "chatml", MARKED])
def test_the_card_of_an_export_has_the_form_its_base_lacks(given: str | None, without_template: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    codec = codec_of(config_with(given), without_template)
    copy_tokenizer(codec, out)
    told = _template(out, without_template)
    assert written_template(codec) in told and "the base model has none" in told
    shutil.copyfile(out / "chat_template.jinja", without_template / "chat_template.jinja")
    assert _template(out, without_template) == "", "the base's own is told nowhere"
    (without_template / "chat_template.jinja").write_text("{{ messages }}")
    assert "the base model has another" in _template(out, without_template)
