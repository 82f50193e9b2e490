"""Rows of tokenizers that put something before a text: their ids are AutoTokenizer's of the whole text, and so is what is learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from holdfast.data.files.raw_row import UnparsedRow
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.rules import NO_LIMIT, Rules
from holdfast.data.templates.chat_template import write
from holdfast.data.tokens.codec import Codec, Fit, Tokens, load_codec
from holdfast.data.tokens.plain_form import written_template
from holdfast.data.tokens.shard import Block, tokenise
from holdfast.data.tokens.shown import show_row
from holdfast.data.tokens.whole import pieces_of, reads_whole
from support.chat_templates import codec_with
from support.sentence_pieces import KINDS, TEMPLATES, make_tokenizer

ASK, TELL = {"role": "user", "content": "How many parts?"}, {"role": "assistant", "content": "Nineteen parts"}
CHATS: dict[str, list[dict[str, str]]] = {
    "one turn": [ASK, TELL],
    "three turns": [
        ASK,
        TELL,
        ASK,
        TELL | {"content": "  three,\n\u00e9 in the yard \U0001f600 "},
        ASK,
        TELL | {"content": "\u2581many more"},
    ],
    "a system turn": [{"role": "system", "content": "Be brief"}, ASK, TELL],
}
TEXTS: dict[str, dict[str, str]] = {
    "a text": {"text": "How many parts are there"},
    "a text that begins with a space": {"text": " many"},
    "a completion": {"prompt": "How many parts?", "completion": " Nineteen parts"},
    "a completion within a word": {"prompt": "How man", "completion": "y parts"},
    "a completion behind a line": {"prompt": "Be brief\n", "completion": "Nineteen \u00e9"},
}


def encoded(codec: Codec, row: dict[str, Any]) -> tuple[Tokens, str, list[tuple[int, int]]]:
    """The tokens of a row, its text, and the stretches of the text that are learned."""
    (sequence,) = write(parse_example(row, "auto"), codec.template).sequences
    (tokens,) = codec.encode([sequence], Rules(max_tokens=NO_LIMIT))
    assert isinstance(tokens, Tokens)
    at, spans = 0, []
    for text, learned in sequence:
        spans += [(at, at + len(text))] if learned and text else []
        at += len(text)
    return tokens, "".join(text for text, _ in sequence), spans


def covers(stretch: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    return any(stretch[0] < end and stretch[1] > begin for begin, end in spans)


FOLDERS: list[tuple[str, str, dict[str, Any]]] = [*((kind, "mistral", {}) for kind in KINDS)]
FOLDERS += [
    ("prepend", "llama", {}),
    ("prepend", "llama", {"legacy": True}),
    ("prepend", "llama", {"legacy": False, "add_prefix_space": True}),
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("kind", "model_type", "settings"), FOLDERS)
def test_ids_and_what_is_learned_are_those_of_the_whole_text(
    kind: str, model_type: str, settings: dict[str, Any], template: str, tmp_path: Path
) -> None:
    folder = make_tokenizer(tmp_path, kind, TEMPLATES[template], model_type)
    named = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(named | settings))
    codec, theirs = load_codec(folder), AutoTokenizer.from_pretrained(folder)
    assert codec.whole
    for name, turns in CHATS.items():
        tokens, text, spans = encoded(codec, {"messages": turns})
        rendered = theirs.apply_chat_template(turns, tokenize=False, chat_template=written_template(codec))
        whole = theirs(rendered, add_special_tokens=False)
        assert (text, tokens.ids) == (rendered, whole["input_ids"]), (name, theirs.convert_ids_to_tokens(tokens.ids))
        assert tokens.learned == [covers(stretch, spans) for stretch in whole[0].offsets], name
        if template == "marked" and kind != "word pieces":  # without a token for white space, its mask leaves out what begins so
            mask = theirs.apply_chat_template(turns, return_assistant_tokens_mask=True, return_dict=True)["assistant_masks"]
            assert [*map(int, tokens.learned)] == mask, name
    for name, row in TEXTS.items():
        tokens, text, _ = encoded(codec, row)
        assert tokens.ids == theirs(text.removeprefix("<s>"))["input_ids"], (name, theirs.convert_ids_to_tokens(tokens.ids))


@pytest.mark.parametrize("template", ["zephyr", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_measured_shown_and_cut_as_they_are_encoded(kind: str, template: str, tmp_path: Path) -> None:
    codec = load_codec(make_tokenizer(tmp_path, kind, TEMPLATES[template]))
    rows: list[dict[str, Any]] = [*({"messages": turns} for turns in CHATS.values()), *TEXTS.values()]
    sequences = [write(parse_example(row, "auto"), codec.template).sequences[0] for row in rows]
    for most in (6, 20, 40, NO_LIMIT):
        rules = Rules(max_tokens=most)
        for found, size in zip(codec.encode(sequences, rules), codec.measure(sequences * 20, rules), strict=False):
            if isinstance(found, Tokens):
                expected = Fit(len(found.ids), found.cut, sum(found.learned[1:]), found.lost, found.torn)
                assert size == (expected if isinstance(size, Fit) else expected.tokens)
                assert isinstance(size, Fit) or not found.cut
            else:
                assert str(found) == str(size)
    for row in rows:
        tokens, text, _ = encoded(codec, row)
        raw = UnparsedRow(1, json.dumps(row).encode())
        shown = show_row(raw, Rules(), codec)
        assert [(one["id"], one["learned"]) for one in shown.tokens] == [*zip(tokens.ids, tokens.learned, strict=True)]
        assert shown.text in (text, f"<s>{text}")
        split = tokenise(Block((raw,)), Rules(max_tokens=max(8, len(tokens.ids) - 2), too_long="split"), codec)
        if split.verdicts.mended:
            assert int((split.learned & 1).sum()) >= sum(tokens.learned[1:]) - 2


def test_tokenizers_that_cut_a_text_alike_wherever_it_begins_are_read_in_pieces(tmp_path: Path) -> None:
    assert not reads_whole(codec_with(tmp_path, None).tokenizer)


def test_a_token_of_several_pieces_belongs_to_the_learned_one() -> None:
    row = [("ab", False), ("cd", True), ("ef", False), ("", True), ("gh", False)]
    offsets = [(0, 1), (1, 3), (3, 5), (5, 6), (6, 8)]
    assert pieces_of(offsets, row) == [0, 1, 1, 2, 4]
    assert pieces_of([(0, 1), (0, 1), (1, 8)], row) == [0, 0, 1]
