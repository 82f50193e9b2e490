"""What a client asks for: nothing of it is left out in silence, each draw is another one, and tokens are counted one by one."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.base_model.folder import read_model
from holdfast.cli.commands import serve
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import Example, Message
from holdfast.data.templates.chat_template import pieces
from holdfast.data.templates.template import load_template
from holdfast.data.tokens.codec import Tokens
from holdfast.export.subject import Subject
from holdfast.serve import engines
from holdfast.serve.endpoint import RequestRefused
from holdfast.serve.engines import AnswerRequest, LlamaCpp, hash_of_base
from holdfast.serve.requests import chat_ids, message_of, text_ids, trimmed, wanted_of
from support.chat_templates import SHAPES, codec_with

TEXT = {"type": "text", "text": "What is it?"}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "data:,"}}]}, "'image_url' is not supported"),
        ({"role": "user", "content": [{"type": "input_audio"}, TEXT]}, "'input_audio' is not supported"),
        ({"role": "user", "content": [TEXT, "and more"]}, "'str' is not supported"),
        ({"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "1", "type": "function"}]}, "calls of tools"),
    ],
)
def test_nothing_of_a_message_is_left_out_in_silence(message: dict[str, Any], told: str) -> None:
    with pytest.raises(RequestRefused, match=told) as refused:
        message_of(message)
    assert refused.value.status == 400


def test_parts_of_text_and_fields_without_content_are_taken() -> None:
    assert message_of({"role": "user", "content": [TEXT, TEXT], "name": "ann"}).content == "What is it?" * 2
    assert message_of({"role": "assistant", "content": "x", "tool_calls": None}).content == "x"


def test_a_system_message_that_the_template_drops_is_refused(tmp_path: Path) -> None:
    turns = [Message("system", "Answer in one word."), Message("user", "What lists files?")]
    drops = SHAPES["plain"].replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
    default = "{% if messages[0].role != 'system' %}<|im_start|>system\nAs ever.<|im_end|>\n{% endif %}" + SHAPES["plain"]
    with pytest.raises(RequestRefused, match="writes nothing of a system message") as refused:
        chat_ids(codec_with(tmp_path / "drops", drops), turns)
    assert refused.value.status == 400
    for number, source in enumerate((SHAPES["plain"], default, None)):
        codec = codec_with(tmp_path / str(number), source)
        assert "Answer in one word." in codec.tokenizer.decode(chat_ids(codec, turns), skip_special_tokens=False)
    assert chat_ids(codec_with(tmp_path / "drops", drops), turns[1:])


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("text", [" \n Yes,  it\nis. \n", "Yes", " \n ", "", "a ", " a", "a \n\n b"])
def test_an_answer_in_parts_is_the_answer_as_a_whole(text: str, size: int) -> None:
    """Both are without the white space around it, which templates put there."""
    parts = [(text[at : at + size], 1, None) for at in range(0, len(text), size)]
    found = [*trimmed([*parts, ("", 0, "stop")])]
    assert "".join(piece for piece, _, _ in found) == text.strip()
    assert sum(tokens for _, tokens, _ in found) == len(parts) and found[-1][2] == "stop"


def test_without_a_seed_each_answer_is_another_draw() -> None:
    free = [wanted_of(64, {"temperature": 1}, [1]).seed for _ in range(8)]
    assert len({*free}) > 1 and all(0 <= seed < 2**31 for seed in free)
    assert {wanted_of(64, {"temperature": 1, "seed": seed}, [1]).seed for seed in (7, 7)} == {7}
    assert wanted_of(64, {"seed": 0}, [1]).seed == 0


@pytest.mark.parametrize("source", [SHAPES["plain"], None], ids=["with a chat template", "without"])
@pytest.mark.parametrize("begins", ["<|im_start|>", ""])
def test_a_text_begins_as_a_text_of_training_does(tmp_path: Path, source: str | None, begins: str) -> None:
    codec = codec_with(tmp_path / "model", source, begins)
    for text in ("Join amber", *([f"{begins}Join amber"] if begins else [])):
        trained = codec.encode([pieces(Example(given=text, learned=" and 37"), codec.template)], Rules())[0]
        assert isinstance(trained, Tokens)
        ids = text_ids(codec, text)
        assert ids == trained.ids[: trained.learned.index(True)]
        assert ids.count(codec.tokenizer.token_to_id("<|im_start|>")) == (1 if begins else 0)


@pytest.mark.parametrize("ends", ["eos", "limit"])
def test_tokens_of_one_character_are_counted_each(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """llama.cpp sends nothing until a character is whole, and counts the token that ends an answer, which has a part without text."""
    parts = [{"content": "ls ", "tokens_predicted": 1}, {"content": "🎉", "tokens_predicted": 5}, {"content": "!", "tokens_predicted": 6}]
    last = {"content": "", "stop": True, "stop_type": ends, "tokens_predicted": 7 if ends == "eos" else 8}
    empty = {"content": "", "tokens_predicted": 7}
    lines = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in [*parts, empty, last])
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(lines))
    engine = object.__new__(LlamaCpp)
    ready = {"url": "http://127.0.0.1:1", "key": "k"}
    engine._names = ["tuned"]
    engine._child = SimpleNamespace(ready=ready, asked=lambda: contextlib.nullcontext(lambda: None))  # type: ignore[assignment]
    found = [*engine.stream(AnswerRequest("tuned", [1], 8, 0.0, 1.0, 0))]
    assert [(text, count) for text, count, _ in found[:3]] == [("ls ", 1), ("🎉", 4), ("!", 1)]
    assert sum(count for _, count, _ in found) == (6 if ends == "eos" else 8)
    assert found[-1][2] == ("stop" if ends == "eos" else "length")


def test_a_base_in_gguf_is_kept_for_those_alone_who_end_answers_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_with(tmp_path / "model", SHAPES["plain"])
    subject: Any = SimpleNamespace(
        hashes=lambda: {"base_sha256": "b" * 64}, facts=SimpleNamespace(folder=codec.folder, text={}, generation={})
    )
    given = SHAPES["plain"].replace("<|im_end|>", "<|endoftext|>")
    other = replace(codec, given=given, template=replace(load_template(codec.folder, given), specials=codec.template.specials))
    assert hash_of_base(subject, codec) == hash_of_base(subject, replace(codec)) != hash_of_base(subject, other)
    before = hash_of_base(subject, codec)
    monkeypatch.setattr(engines, "__version__", "another")
    assert hash_of_base(subject, codec) != before, "what another version wrote may be what this one mended"


@pytest.mark.parametrize("adapter", [{}, {"num_virtual_tokens": 20}])
def test_virtual_tokens_stand_within_the_context(adapter: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On GPT-2 an answer that filled the context ended the engine: index out of range in self."""
    subject = Subject("run", tmp_path, adapter, "tiny", read_model("tiny"), None)
    for name in ("_engine", "_experts"):
        monkeypatch.setattr(serve, name, lambda *_: None)
    context = serve._served(argparse.Namespace(base=None, context=None), subject, "run", tmp_path).context
    assert subject.facts.positions and context == subject.facts.positions - adapter.get("num_virtual_tokens", 0)


@pytest.mark.parametrize(
    ("asked", "row", "context"), [(None, 100, 8192), (None, 20_000, 20_000), (512, 20_000, 512), (131_072, 9, 131_072)]
)
def test_llama_cpp_reserves_what_is_needed(
    asked: int | None, row: int, context: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of 131,072 positions took 32 GiB for keys and values when it was loaded."""
    tiny = read_model("tiny")
    facts = replace(tiny, config=tiny.config | {"max_position_embeddings": 131_072})
    run: Any = SimpleNamespace(path=tmp_path, data_file=tmp_path / "tokens")
    nothing = [(serve, name) for name in ("_experts", "subject_codec", "measuring_environment")]
    nothing += [(engines, name) for name in ("_base_in_gguf", "write_gguf_adapter", "Child")]
    for module, name in nothing:
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(serve, "load_tokens", lambda _: SimpleNamespace(starts=np.array([0, 5, 5 + row])))
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda _: True)
    arguments = argparse.Namespace(base=None, context=asked, engine=None)
    served = serve._served(arguments, Subject("run", tmp_path, {}, "tiny", facts, run), "run", tmp_path)
    assert json.loads((tmp_path / "serve.json").read_text())["context"] == served.context == context
    with pytest.raises(RequestRefused) as refused:
        wanted_of(served.context, {}, [1] * context, longer=served.longer)
    longer = "this endpoint takes {:,}; start it with --context TOKENS, of up to 131,072" if context < 131_072 else "the model takes {:,}"
    assert str(refused.value) == f"the prompt has {context:,} tokens, {longer.format(context)}"
