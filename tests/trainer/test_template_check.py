"""What holdfast writes of a row is held against transformers' own renderer at the start of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import processors
from transformers import AutoTokenizer

from holdfast.config.config import Config
from holdfast.data.judge.layouts import parse_example
from holdfast.data.judge.turns import BadRow
from holdfast.data.templates.chat_template import learned_by, write
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.tasks.text import tokenizer_check
from holdfast.trainer.tasks.text.template_check import difference, refuse_other_rendering
from support.architectures import tokens_of
from support.chat_templates import SHAPES, codec_with
from support.other_prompts import OTHER_PROMPTS

ASK, TELL = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Nineteen."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "stock", "arguments": {"part": "M3"}}}],
}
TOOLS = [{"type": "function", "function": {"name": "stock", "parameters": {"type": "object", "properties": {}}}}]
ROWS: Mapping[str, Any] = {
    "one turn": {"messages": [ASK, TELL]},
    "two turns": {"messages": [ASK, TELL, ASK, TELL]},
    "a system turn": {"messages": [{"role": "system", "content": "Be brief."}, ASK, TELL]},
    "a thought": {"messages": [ASK, TELL | {"content": "<think>\nCount.\n</think>\n\nNineteen."}]},
    "reasoning apart": {"messages": [ASK, TELL | {"reasoning_content": "Count."}, ASK, TELL | {"reasoning_content": "Again."}]},
    "a call": {"messages": [ASK, CALL, {"role": "tool", "name": "stock", "content": "19"}, TELL], "tools": TOOLS},
    "an instruction": {"instruction": "How many?", "output": "Nineteen."},
}
CALLED = {
    name: {"messages": [ASK, CALL | beside, {"role": "tool", "name": "stock", "content": "19"}, TELL]}
    for name, beside in (("content beside a call", {"content": "I look."}), ("a thought at a call", {"reasoning_content": "Count."}))
}


@pytest.mark.parametrize("learns", ["assistant", "last", "all"])
@pytest.mark.parametrize("shape", [*SHAPES, *OTHER_PROMPTS])
def test_rows_of_every_shape_are_written_as_transformers_writes_them(shape: str, learns: Any, tmp_path: Path) -> None:
    template = codec_with(tmp_path, (SHAPES | OTHER_PROMPTS)[shape]).template
    special = dict(template.names) | {"bos_token": template.bos, "eos_token": template.eos}
    compared = 0
    for name, row in (ROWS | CALLED).items():
        example = parse_example(row, "auto")
        try:
            written = learned_by(write(example, template), learns)
        except BadRow:
            continue
        compared += 1
        assert difference(written, example, template, special) is None, name
    assert compared >= 4


@pytest.mark.parametrize("begins", ["", "<|endoftext|>"])
def test_a_row_that_transformers_writes_otherwise_is_refused_with_both_texts(begins: str, tmp_path: Path) -> None:
    codec = codec_with(tmp_path / "model", "{{ bos_token }}" + SHAPES["plain"])
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in ({"text": "no template"}, ROWS["two turns"], ROWS["one turn"])))
    config = Config.model_validate({"model": "tiny", "data": {"files": [str(rows)]}})
    special = {"bos_token": codec.template.bos, "eos_token": codec.template.eos}
    refuse_other_rendering(config, codec, special)
    with pytest.raises(Refusal, match=r"rows\.jsonl:[23]: transformers writes this row otherwise") as told:
        refuse_other_rendering(config, codec, special | {"bos_token": begins + "<s>"})
    assert f"transformers: '{begins}<s><|im_start|>user" in str(told.value) and "How many?" in str(told.value)


class OtherCuts:
    """A tokenizer like another, which cuts texts with a word in them otherwise."""

    special_tokens_map: Mapping[str, str] = {}

    def __init__(self, tokenizer: Any, word: str) -> None:
        self.tokenizer, self.word = tokenizer, word

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return {"input_ids": [*ids[:3], 7, *ids[3:]] if self.word in text else ids}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def get_added_vocab(self) -> dict[str, int]:
        return {}


def test_a_vocab_json_with_other_numbers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AutoTokenizer goes by tokenizer.json, slow tokenizers of transformers 4 by the other."""
    codec = codec_with(tmp_path / "model", SHAPES["plain"])
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS["one turn"]))
    config = Config.model_validate({"model": str(tmp_path / "model"), "data": {"files": [str(tmp_path / "rows.jsonl")]}})
    monkeypatch.setattr(tokenizer_check, "read_model", lambda _: SimpleNamespace(folder=tmp_path / "model"))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: OtherCuts(codec.tokenizer, "no such word"))
    known = codec.tokenizer.get_vocab(with_added_tokens=False)
    (tmp_path / "model" / "vocab.json").write_text(json.dumps(known))
    assert tokenizer_check.compare_readers(config, tokens_of((4, 4))) is None
    one, other = [*known][:2]
    (tmp_path / "model" / "vocab.json").write_text(json.dumps(known | {one: known[other], other: known[one]}))
    told = tokenizer_check.compare_readers(config, tokens_of((4, 4)))
    assert told and told["vocab.json"].startswith(f"2 of its {len(known):,} tokens have other numbers ({one!r} is {known[other]}, in ")


@pytest.mark.parametrize("rare", ["a system turn", "two turns", "an instruction"])
@pytest.mark.parametrize("template", [SHAPES["plain"], None])
def test_ids_of_a_rare_shape_are_compared_too(rare: str, template: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_with(tmp_path / "model", template)
    odd = json.dumps(ROWS[rare]).replace("How many", "x")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{json.dumps(ROWS['a thought'])}\n" * 99 + odd)
    config = Config.model_validate({"model": str(tmp_path / "model"), "data": {"files": [str(rows)]}})
    monkeypatch.setattr(tokenizer_check, "read_model", lambda _: SimpleNamespace(folder=tmp_path / "model"))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: OtherCuts(codec.tokenizer, "no such word"))
    assert tokenizer_check.compare_readers(config, tokens_of((4, 4))) is None
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: OtherCuts(codec.tokenizer, "x?"))
    with pytest.raises(Refusal, match=r"tokenizer\.json says \[.*AutoTokenizer says \[7, ") as refused:
        tokenizer_check.compare_readers(config, tokens_of((4, 4)))
    assert "rows.jsonl" in str(refused.value) and "100" in str(refused.value)


def lower(tree: dict[str, Any], _: dict[str, Any]) -> None:
    tree["normalizer"] = {"type": "Lowercase"}


def add_a_token(_: dict[str, Any], settings: dict[str, Any]) -> None:
    settings["additional_special_tokens"] = ["Nineteen"]


def compose(tree: dict[str, Any], _: dict[str, Any]) -> None:
    tree["normalizer"] = {"type": "NFD"}


BY_FILE, BY_CLASS = "from one download", "set tokenizer_class to "
DISAGREEING = [
    (lower, {"text": "Only here a LETTER is large."}, BY_CLASS),
    (lower, {"prompt": "How many of it ", "completion": "are GREEN?"}, BY_CLASS),
    (compose, {"messages": [ASK, TELL | {"content": "Né, it is nineteen and a half of them in all."}]}, BY_CLASS),
    (add_a_token, ROWS["one turn"], "take 'Nineteen' out of the model's tokenizer_config.json"),
]


@pytest.mark.parametrize(("change", "row", "hint"), DISAGREEING)
def test_rows_whose_text_the_files_of_a_tokenizer_read_otherwise_are_refused(
    change: Any, row: Any, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = codec_with(tmp_path / "model", SHAPES["plain"])
    tree, settings = (json.loads((codec.folder / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json"))
    (codec.folder / "rows.jsonl").write_text(f"{json.dumps({'messages': [ASK, TELL | {'content': 'nine'}]})}\n" * 3 + json.dumps(row))
    theirs = codec.tokenizer.from_str(json.dumps(tree))
    settings["tokenizer_class"] = "TokenizersBackend"
    change(tree, settings)
    (codec.folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = Config.model_validate({"model": str(codec.folder), "data": {"files": [str(codec.folder / "rows.jsonl")]}})
    monkeypatch.setattr(tokenizer_check, "read_model", lambda _: SimpleNamespace(folder=codec.folder))
    if change is not add_a_token:
        (codec.folder / "tokenizer.json").write_text(json.dumps(tree))
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: OtherCuts(theirs, "no such word"))
    with pytest.raises(Refusal, match=r"rows\.jsonl:[1-4], token \d+ of \d+: .*tokenizer\.json says \[.*AutoTokenizer says \[") as refused:
        tokenizer_check.compare_readers(config, tokens_of((4, 4)))
    assert hint in refused.value.hint


def test_a_token_that_autotokenizer_alone_puts_before_a_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers 4 does by add_bos_token, whatever tokenizer.json says; with a template the text has its own beginning."""
    opening = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    for template, refused in ((None, True), (SHAPES["plain"], False)):
        codec = codec_with(tmp_path / f"model{refused}", template)
        (codec.folder / "rows.jsonl").write_text(json.dumps(ROWS["one turn"]))
        theirs = codec.tokenizer.from_str(codec.tokenizer.to_str())
        theirs.post_processor = opening
        config = Config.model_validate({"model": str(codec.folder), "data": {"files": [str(codec.folder / "rows.jsonl")]}})
        monkeypatch.setattr(tokenizer_check, "read_model", lambda _, folder=codec.folder: SimpleNamespace(folder=folder))
        monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, theirs=theirs, **__: OtherCuts(theirs, "no such word"))
        with pytest.raises(Refusal, match="each text") if refused else nullcontext():
            tokenizer_check.compare_readers(config, tokens_of((4, 4)))
