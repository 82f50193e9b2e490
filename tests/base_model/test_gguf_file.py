"""`model: FILE.gguf`: widened once through transformers, the same model as before; one that is torn or no model is told in a sentence."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from holdfast.base.errors import Stop
from holdfast.base_model import gguf_file
from holdfast.base_model.folder import read_model
from holdfast.base_model.gguf_file import read_tensors
from holdfast.cli.main import main
from holdfast.config.load import load_config
from holdfast.data.tokens.codec import load_codec
from holdfast.export.gguf.convert import write_gguf
from holdfast.export.subject import read_subject
from holdfast.trainer.jobs.widen import widen
from holdfast.trainer.model.trained.adapters import adapter_config
from support.rounding import distance
from support.shipped import make_adapter, make_family

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")


@pytest.fixture(scope="module")
def base(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_family("llama", assets.model, tmp_path_factory.mktemp("widened") / "llama")


@pytest.fixture(scope="module")
def written(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The base as a GGUF file of a type."""
    folder = tmp_path_factory.mktemp("gguf")
    adapter = make_adapter(base, folder / "adapter")

    def of(kind: str) -> Path:
        file = folder / f"small-{kind}.gguf"
        if not file.exists():
            write_gguf(read_subject(adapter), load_codec(base), file, kind, adapted=False)
        return file

    return of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widen in this process, into a cache of its own; how often that was."""
    done: list[int] = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        done.append(widen(Path(command[-2]), Path(command[-1])))
        return SimpleNamespace(returncode=done[-1], stderr="")

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(gguf_file, "subprocess", SimpleNamespace(run=run, DEVNULL=None))
    return done


@pytest.mark.parametrize(("kind", "stored", "apart"), [("f32", "F32", 1e-5), ("f16", "F16", 2e-2), ("q8_0", "BF16", 2e-1)])
def test_a_widened_file_is_the_model_it_was_made_of(
    kind: str, stored: str, apart: float, base: Path, written: Callable[[str], Path], here: list[int], tmp_path: Path
) -> None:
    facts = read_model(str(written(kind)))
    assert facts.stored == stored and "quantization_config" not in facts.config
    ids = torch.arange(3, 43)[None]
    ours, theirs = (AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits for folder in (facts.folder, base))
    assert distance(ours, theirs) < apart
    text = [{"role": "user", "content": "Show the 17 disks."}, {"role": "assistant", "content": "lsblk\n  -f"}]
    one, other = (AutoTokenizer.from_pretrained(folder).apply_chat_template(text, tokenize=False) for folder in (facts.folder, base))
    assert one == other
    assert load_codec(facts.folder).tokenizer.encode(one).ids == load_codec(base).tokenizer.encode(other).ids
    read_model(str(shutil.copy(written(kind), tmp_path)))
    assert here == [0], "the same file elsewhere is not widened again"


def test_an_adapter_names_the_folder_that_others_can_load(written: Callable[[str], Path]) -> None:
    model = SimpleNamespace(
        modules=list, peft_config={"default": SimpleNamespace(to_dict=dict)}, get_base_model=lambda: SimpleNamespace(config=LlamaConfig())
    )
    named = adapter_config(model, str(written("f32")))
    assert (Path(named["base_model_name_or_path"]) / "model.safetensors").is_file() and named["revision"] is None


def test_a_torn_file_is_told_wherever_it_ends(written: Callable[[str], Path], tmp_path: Path, here: list[int]) -> None:
    whole = written("f32").read_bytes()
    for share in (0.0, 1e-4, 0.01, 0.3, 0.7, 0.999):
        file = tmp_path / "torn.gguf"
        file.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(Stop, match=r"torn\.gguf is (torn|no GGUF file)") as stop:
            read_model(str(file))
        assert stop.value.code == 1 and stop.value.hint == "download it again"
        assert share < 0.3 or f"has {file.stat().st_size:,} bytes, and its" in stop.value.message
    assert not list((tmp_path / "cache/widened").glob("*/")), "nothing half made is left"
    assert here == [], "no program that loads models was begun"


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_tensors_are_where_the_package_finds_them(kind: str, written: Callable[[str], Path], tmp_path: Path) -> None:
    file = tmp_path / "more.gguf"
    values = {"a": 3, "b": float("nan"), "c": "text", "d": ["x", "", "yz"], "e": [1, 2, 3], "f": True, "g": [[1, 2], [3]]}
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in values.items():
        writer.add_key_value(name, value, gguf.GGUFValueType.get_type(value))
    writer.add_custom_alignment(64)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float16))
    writer.add_tensor("output_norm.weight", np.zeros(5, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    for one in (file, written(kind)):
        tensors, start = read_tensors(one)
        theirs = [(int(each.tensor_type), tuple(map(int, each.shape)), each.data_offset) for each in gguf.GGUFReader(one).tensors]
        assert [(each.kind, each.shape, start + each.at) for each in tensors] == theirs


def test_what_cannot_be_widened_is_told(written: Callable[[str], Path], tmp_path: Path) -> None:
    strange = gguf.GGUFWriter(tmp_path / "strange.gguf", "clip")
    strange.add_tensor("v.patch_embd.weight", np.zeros((4, 4), np.float32))
    part = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    part.add_uint16("split.count", 3)
    part.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    for writer in (strange, part):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    (tmp_path / "rows.gguf").write_text('{"prompt": "a"}\n')
    (tmp_path / "lfs.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    (tmp_path / "old.gguf").write_bytes(b"GGUF\x01" + bytes(40))
    told = {
        "old": "of version 1",
        "strange": "cannot widen",
        "part": "one of 3 parts",
        "rows": "is no GGUF file",
        "lfs": "pointer of Git LFS",
    }
    for name, words in told.items():
        with pytest.raises(Stop, match=words):
            read_model(str(tmp_path / f"{name}.gguf"))


VOCABULARIES = {
    "no tokens": ("add_token_list", lambda _: None, r"has no vocabulary \(tokenizer\.ggml\.tokens\)"),
    "fewer tokens": ("add_token_list", lambda given: given[:-8], r"its vocabulary is not its model's.*and the embedding has [\d,]+ rows"),
    "fewer types": ("add_token_types", lambda given: given[:-8], r"its vocabulary .* token_type has [\d,]+"),
    "no such end": ("add_eos_token_id", lambda _: 900_000, r"its vocabulary .* eos_token_id is 900,000"),
    "no merges": ("add_token_merges", lambda _: None, r"cannot read the vocabulary of"),
    "torn merges": ("add_token_merges", lambda given: [one[:1] for one in given], r"cannot read the vocabulary of"),
}


@pytest.mark.parametrize(("what", "change", "told"), VOCABULARIES.values(), ids=VOCABULARIES)
def test_a_vocabulary_that_is_wrong_is_named(
    what: str, change: Callable[[Any], Any], told: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = getattr(gguf.GGUFWriter, what)

    def changed(writer: Any, given: Any) -> None:
        if (left := change(given)) is not None:
            own(writer, left)

    monkeypatch.setattr(gguf.GGUFWriter, what, changed)
    file = tmp_path / "words.gguf"
    write_gguf(read_subject(make_adapter(base, tmp_path / "adapter")), load_codec(base), file, "f16", adapted=False)
    with pytest.raises(Stop, match=told) as stop:
        read_model(str(file))
    assert stop.value.code == 1 and stop.value.hint


def test_rows_beyond_the_tokens_and_a_vocabulary_without_an_end_are_no_fault(
    assets: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of Qwen and Phi: converters give the rows that their tokenizer has no token for a name that no text has."""
    padded = make_family("llama", assets.model, tmp_path / "padded", vocab_size=512)
    monkeypatch.setattr(gguf.GGUFWriter, "add_eos_token_id", lambda *_: None)
    file = tmp_path / "padded.gguf"
    write_gguf(read_subject(make_adapter(padded, tmp_path / "adapter")), load_codec(padded), file, "f16", adapted=False)
    assert read_model(str(file)).shapes["model.embed_tokens.weight"][0] == 512 > load_codec(padded).tokenizer.get_vocab_size()


def test_a_head_with_a_token_that_is_none_or_a_name_of_no_letters_is_refused(written: Callable[[str], Path], tmp_path: Path) -> None:
    whole, end = written("f16").read_bytes(), b"tokenizer.ggml.eos_token_id"
    at = whole.index(end) + len(end) + 4  # behind its type
    beyond = whole[:at].replace(end, b"tokenizer.ggml.bos_token_id") + (900_000).to_bytes(4, "little") + whole[at + 4 :]
    nameless = whole.replace(b"tokenizer.ggml.pre", b"tokenizer.ggml.\xff\xfe\xfd")
    for name, head, told in (("beyond", beyond, r"cannot read the vocabulary of"), ("nameless", nameless, r"nameless\.gguf")):
        (file := tmp_path / f"{name}.gguf").write_bytes(head)
        with pytest.raises(Stop, match=told):
            read_model(str(file))


def test_a_config_takes_the_file_and_tells_a_missing_one(written: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    file = tmp_path / "a.yaml"
    file.write_text(f"model: {os.path.relpath(written('f32'), tmp_path)}\ndata: {{files: rows.jsonl}}\n")
    assert load_config(file).model == str(written("f32")) and main(["plan", str(file), "--memory", "4GiB"]) == 0
    file.write_text("model: nowhere.gguf\ndata: {files: rows.jsonl}\n")
    with pytest.raises(Stop, match=r"model: nowhere\.gguf: no such file"):
        load_config(file)
