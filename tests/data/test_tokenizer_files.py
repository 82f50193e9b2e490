"""Folders whose tokenizer is not a tokenizer.json: read as transformers reads them, or refused with what writes one."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from holdfast.base.errors import Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.data.tokens.codec import load_codec

TINY = EMBEDDED["tiny"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copyfile(TINY / name, tmp_path / name)
    return tmp_path


def test_vocabulary_and_merges_of_qwen2_are_read_as_transformers_reads_them(folder: Path) -> None:
    model = json.loads((TINY / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["merges"]))
    text = "<|im_start|>user\nSay 37<|im_end|>\n<|pad|><|endoftext|>"
    ours, theirs = load_codec(folder).tokenizer, AutoTokenizer.from_pretrained(folder)
    assert ours.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)["input_ids"]


RANKS = b"".join(base64.b64encode(bytes([number])) + b" %d\n" % number for number in range(256))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("tokenizer.model", b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02", "pip install sentencepiece, then python -c"),
        ("tokenizer.model", RANKS, "pip install tiktoken, then python -c"),
        ("vocab.txt", b"[UNK]\n", "save_pretrained("),
        (None, b"", "fetch the model's tokenizer again"),
    ],
)
def test_another_form_is_refused_with_the_command_that_writes_ours(name: str | None, content: bytes, told: str, folder: Path) -> None:
    if name:
        (folder / name).write_bytes(content)
    with pytest.raises(Stop, match=r"has no tokenizer\.json") as stop:
        load_codec(folder)
    assert told in stop.value.hint and (name or "") in stop.value.message
