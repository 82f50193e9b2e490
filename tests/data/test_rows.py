"""Rows: every layout read, every reject with its bytes, answers learned and prompts not, padding that is never the end of text."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import SHARED, needs_shared
from holdfast.base.errors import Stop
from holdfast.data.files.raw_row import RawRow, Reject
from holdfast.data.files.read import read_rows
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.rules import Rules
from holdfast.data.judge.turns import BadRow, Example, Message
from holdfast.data.templates.chat_template import ChatTemplate, load_template, pieces
from holdfast.data.tokens.codec import Tokens, load_codec

USER, ANSWER = Message("user", "q"), Message("assistant", "a")


def read(tmp_path: Path, content: bytes) -> list[RawRow | Reject]:
    file = tmp_path / "data.jsonl"
    file.write_bytes(content)
    return list(read_rows(str(file)))


@settings(max_examples=200)
@given(content=st.lists(st.binary(max_size=30)))
def test_every_line_that_is_not_blank_comes_out_once_whatever_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, content: list[bytes]
) -> None:
    body = [b'{"text": "a"}', *(line.replace(b"\n", b"").replace(b"\r", b"") for line in content)]
    rows = read(tmp_path_factory.mktemp("rows"), b"\n".join(body))
    assert [row.raw for row in rows] == [line for line in body if line.strip()]
    numbers = [number for number, line in enumerate(body, 1) if line.strip()]
    assert [row.source.line for row in rows] == numbers


def test_an_array_gives_its_elements_with_their_lines(tmp_path: Path) -> None:
    rows = read(tmp_path, b'[\n{"a": 1},\n  {"b":\n 2}, 3]\n')
    assert [(row.source.line, row.value) for row in rows if isinstance(row, RawRow)] == [(2, {"a": 1}), (3, {"b": 2}), (4, 3)]


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (b'[{"a": 1}, {"a": 2}, {"a": 3}]', [1, 2, 3]),
        (b'{"train": [{"a": 1}, {"a": 2}], "more": 3}', [1, 2]),
        (b'[{"a": 1},\n{"a": 2}, {"a": 3}]', [1, 2, 2]),
        (b'[\n{"a": 1}, {"a": 2}, {"a": 3}\n]\n', [1, 2, 3]),
        (b'{"train": [\n  {"a": 1},{"a": 2}]}', [1, 2]),
        (b'[\n{"a": 1},\n{"a": 2}]', [2, 3]),
        (b'[\n{"a": 1}]', [2]),
        (b'[\n{"a":\n1}, {"a": 2}]', [2, 3]),
    ],
)
def test_rows_of_an_array_on_one_line_are_told_by_their_number(tmp_path: Path, content: bytes, places: list[int]) -> None:
    assert [row.source.line for row in read(tmp_path, content)] == places


def test_damage_in_an_array_on_one_line_is_told_by_row_and_character(tmp_path: Path) -> None:
    rows = read(tmp_path, b'[{"a": 1}, {"a": 2}, {"a" 3}, {"a": 4}]')
    (bad,) = [row for row in rows if isinstance(row, Reject)]
    assert [row.source.line for row in rows] == [1, 2, 3, 4]
    assert "in line 1, character 27" in bad.detail and "reading goes on at row 4" in bad.detail


@pytest.mark.parametrize(
    ("content", "good", "reason"),
    [
        (b'[{"a": 1}, {"b": 2', 1, "parse_error"),
        (b'[{"a": 1},', 1, "parse_error"),
        (b'[{"a": 1} oops {"b": 2}]', 1, "parse_error"),
        (b'[{"a": "\\ud800"}]', 0, "parse_error"),
        (b'[{"a": "\xff"}]', 0, "bad_encoding"),
    ],
)
def test_a_damaged_array_keeps_what_stands_before_the_damage(tmp_path: Path, content: bytes, good: int, reason: str) -> None:
    rows = read(tmp_path, content)
    assert [type(row) for row in rows] == [RawRow] * good + [Reject]
    assert isinstance(rows[-1], Reject)
    assert rows[-1].reason == reason


@pytest.mark.parametrize(
    ("raw", "hint"),
    [(b"{'a': 1}", "single quotes"), (b'{"a": 1,}', "a comma before the closing bracket"), (b'{"a": "b', "cut off")],
)
def test_a_parse_error_says_what_is_likely_wrong(tmp_path: Path, raw: bytes, hint: str) -> None:
    (row,) = read(tmp_path, raw)
    assert isinstance(row, Reject)
    assert hint in row.detail


@needs_shared
def test_no_file_of_the_json_parsing_test_suite_is_a_crash(tmp_path: Path) -> None:
    files = sorted((SHARED / "data" / "broken").rglob("*"))
    for file in files:
        if file.is_file():
            try:
                for row in read_rows(str(file)):
                    assert isinstance(row, RawRow | Reject)
            except Stop as stop:
                assert str(file) in stop.message
    assert len(files) > 300


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"instruction": "q", "output": "a"}, Example(messages=(USER, ANSWER))),
        ({"instruction": "q", "input": "x", "output": "a"}, Example(messages=(Message("user", "q\nx"), ANSWER))),
        ({"instruction": "q", "input": None, "output": "a"}, Example(messages=(USER, ANSWER))),
        ({"prompt": "q", "completion": "a"}, Example(given="q", learned="a")),
        ({"text": "a"}, Example(learned="a")),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, Example(messages=(USER, ANSWER))),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, Example(messages=(USER, ANSWER))),
    ],
)
def test_every_layout_is_recognised(row: dict[str, Any], expected: Example) -> None:
    assert parse_example(row, "auto") == expected


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([], "not_an_object"),
        ({}, "missing_field"),
        ({"instruction": "q", "output": None}, "missing_field"),
        ({"instruction": "q", "output": ["a"]}, "wrong_type"),
        ({"instruction": "q", "output": " \n"}, "empty_answer"),
        ({"instruction": " ", "output": "a"}, "empty_prompt"),
        ({"messages": "q"}, "wrong_type"),
        ({"messages": []}, "no_user_turn"),
        ({"messages": [{"role": "user", "content": "q"}]}, "no_assistant_turn"),
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}, "empty_answer"),
        ({"messages": [{"role": "user"}]}, "wrong_type"),
        ({"conversations": [{"from": "alien", "value": "q"}]}, "wrong_role"),
    ],
)
def test_a_row_that_cannot_be_learned_says_why(row: Any, reason: str) -> None:
    with pytest.raises(BadRow) as caught:
        parse_example(row, "auto")
    assert caught.value.reason == reason


def test_only_answers_are_learned_in_a_conversation_of_several_turns(assets: SimpleNamespace) -> None:
    template = load_template(assets.model)
    turns = (Message("system", "s"), USER, ANSWER, Message("user", "q2"), Message("assistant", "a2"))
    found = pieces(Example(messages=turns), template)
    assert [text for text, learned in found if learned] == ["a<|im_end|>\n", "a2<|im_end|>\n"]
    assert "".join(text for text, _ in found).endswith("<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\na2<|im_end|>\n")


def test_without_a_chat_template_the_plain_form_ends_with_the_end_of_text() -> None:
    found = pieces(Example(messages=(USER, ANSWER)), ChatTemplate(None, "<s>", "</s>", None))
    assert found == [("### Instruction:\nq\n\n### Response:\n", False), ("a</s>", True)]


def encode(assets: SimpleNamespace, answer: str, max_tokens: int = 64) -> Tokens | BadRow:
    codec = load_codec(assets.model)
    example = Example(messages=(USER, Message("assistant", answer)))
    return codec.encode([pieces(example, codec.template)], Rules(max_tokens=max_tokens))[0]


def test_a_row_ends_with_a_learned_end_token_and_padding_is_another(assets: SimpleNamespace) -> None:
    codec, tokens = load_codec(assets.model), encode(assets, "amber-1")
    assert isinstance(tokens, Tokens)
    end = codec.tokenizer.token_to_id("<|im_end|>")
    assert (tokens.ids[-2], tokens.learned[-2]) == (end, True)
    assert codec.pad != end
    assert (
        codec.tokenizer.decode([token for token, learned in zip(tokens.ids, tokens.learned, strict=True) if learned]).strip() == "amber-1"
    )


def test_tokens_are_those_of_the_models_own_tokenizer(assets: SimpleNamespace) -> None:
    from transformers import AutoTokenizer

    tokens = encode(assets, "cedar-185!!")
    theirs = AutoTokenizer.from_pretrained(assets.model)
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "cedar-185!!"}]
    assert isinstance(tokens, Tokens)
    assert tokens.ids == theirs(theirs.apply_chat_template(turns, tokenize=False), add_special_tokens=False)["input_ids"]


def test_a_long_answer_is_cut_and_a_prompt_that_fills_the_row_is_refused(assets: SimpleNamespace) -> None:
    cut = encode(assets, "amber " * 100)
    assert isinstance(cut, Tokens)
    assert (len(cut.ids), cut.cut > 0) == (64, True)
    refused = encode(assets, "amber", max_tokens=8)
    assert isinstance(refused, BadRow)
    assert (refused.reason, "after max_tokens = 8" in refused.detail) == ("all_labels_masked", True)


@pytest.mark.parametrize(
    ("pad", "eos", "expected"),
    [("<|pad|>", "<|im_end|>", "<|pad|>"), ("<|im_end|>", "<|im_end|>", "<|pad|>"), (None, "<|im_end|>", "<|pad|>")],
)
def test_padding_is_never_the_end_of_text(assets: SimpleNamespace, tmp_path: Path, pad: str | None, eos: str, expected: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((assets.model / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": pad, "eos_token": eos}))
    codec = load_codec(tmp_path)
    assert codec.tokenizer.id_to_token(codec.pad) == expected


@needs_shared
def test_the_template_of_qwen_is_rendered_as_transformers_renders_it() -> None:
    from transformers import AutoTokenizer

    folder = SHARED / "data" / "tokenizers" / "qwen2.5"
    theirs = AutoTokenizer.from_pretrained(folder)
    turns = (USER, ANSWER, Message("user", "and?"), Message("assistant", "{'x': \"ü\"}"))
    ours = "".join(text for text, _ in pieces(Example(messages=turns), load_template(folder)))
    assert ours == theirs.apply_chat_template([{"role": m.role, "content": m.content} for m in turns], tokenize=False)


CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ TEXT }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEMPLATES = {
    "as it stands": CHATML.replace("TEXT", "m.content"),
    "joined": CHATML.replace("TEXT", "'\\n' + m.content + '\\n'"),
    "trimmed": CHATML.replace("TEXT", "m.content | trim"),
    "asked and trimmed": CHATML.replace("TEXT", "('thought ' if '</think>' in m['content'] else '') + m['content'].strip()"),
    "cut at a literal": CHATML.replace("TEXT", "m.content.split('</think>')[-1]"),
    "compared": CHATML.replace("TEXT", "'empty' if m.content == '' else m.content"),
    "measured": CHATML.replace("TEXT", "m.content | length"),
    "joined, then trimmed": CHATML.replace("TEXT", "(m.content + ' ') | trim"),
    "concatenated, then asked": CHATML.replace("TEXT", "(m.content ~ 'x').startswith('a')"),
    "in capitals": CHATML.replace("TEXT", "m.content | upper"),
    "through a macro": "{% macro say(x) %}{{ x | trim }}{% endmacro %}" + CHATML.replace("TEXT", "say(m.content)"),
    "bound to a name": "{% for m in messages %}{% set c = m.content %}{% if c.startswith('a') %}A{% endif %}{{ c }}{% endfor %}",
    "the last one alone": "{% for m in messages %}{% if loop.last or m.role == 'user' %}{{ m.content }}{% endif %}|{% endfor %}",
}
TEXTS = st.one_of(st.sampled_from(["", " a ", "a\n", "x</think>y", "</think>", "a", "\ue0000\ue001", "A b"]), st.text(max_size=5))


WHITE = re.findall(r"\s", "".join(map(chr, range(0x110000))))
UNSEEN = ["\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u180e", "\u00ad"]  # are no white space


@settings(max_examples=60, deadline=None)
@given(turns=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=3))
@example(turns=[(" a ", "\x85")])
@example(turns=[("\u2028", "a"), ("a", "\x1c\x1f")])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_by_its_shape_is_what_the_template_writes(
    tmp_path_factory: pytest.TempPathFactory, name: str, turns: list[tuple[str, str]]
) -> None:
    folder = tmp_path_factory.mktemp("template")
    (folder / "chat_template.jinja").write_text(TEMPLATES[name])
    template = load_template(folder)
    said = [Message(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)]
    example = Example(messages=tuple(said))
    assert written(example, template) == written(example, dataclasses.replace(template, shapes=None))


@pytest.mark.parametrize("name", ["as it stands", "joined", "trimmed", "asked and trimmed"])
def test_turns_of_white_space_are_by_shape_what_the_template_writes(tmp_path: Path, name: str) -> None:
    (tmp_path / "chat_template.jinja").write_text(TEMPLATES[name])
    template = load_template(tmp_path)
    slow = dataclasses.replace(template, shapes=None)
    for odd in (*WHITE, *UNSEEN):
        for asked, told in (("a", odd), (odd, "a"), ("a", f"{odd}b"), (f"b{odd}", "a"), (f"{odd}{odd}", f"a{odd}b")):
            row = Example(messages=(Message("user", asked), Message("assistant", told)))
            assert written(row, template) == written(row, slow), (asked, told)
            if not told.isspace():
                assert isinstance(written(row, template), list)


def written(example: Example, template: ChatTemplate) -> list[tuple[str, bool]] | str:
    try:
        return pieces(example, template)
    except BadRow as bad:
        return bad.detail


def test_ordinary_templates_are_rendered_once_for_a_shape(tmp_path: Path) -> None:
    shaped = {}
    for name, source in TEMPLATES.items():
        (tmp_path / "chat_template.jinja").write_text(source)
        template = load_template(tmp_path)
        pieces(Example(messages=(USER, ANSWER)), template)
        shaped[name] = bool(template.shapes and template.shapes["user", "assistant"])
    assert [name for name, found in shaped.items() if found][:4] == ["as it stands", "joined", "trimmed", "asked and trimmed"]
    assert not any(shaped[name] for name in ("cut at a literal", "compared", "measured", "in capitals", "through a macro"))


@needs_shared
def test_a_qwen_tokenizer_without_tokenizer_json_gives_the_tokens_of_transformers() -> None:
    from transformers import AutoTokenizer

    folder = SHARED / "data" / "tokenizers" / "qwen2.5"
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_codec(folder).tokenizer
    for text in ("Größe 123, it's\n\n  two <|im_start|>user\n", "日本語 \u00e9 e\u0301", "def f(x):\n\treturn x ** 2  # ok\r\n"):
        assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"]
