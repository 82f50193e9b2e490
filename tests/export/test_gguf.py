"""A GGUF file is written when llama.cpp computes with it what base + adapter compute, and refused when it does not."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import SHARED
from holdfast.base.errors import Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.cli.main import main
from holdfast.export import ask
from holdfast.export.export import ExportRequest
from holdfast.export.gguf import convert, judge
from holdfast.export.gguf import export as exporting
from holdfast.export.gguf.export import export_gguf
from holdfast.export.gguf.families import family_of
from holdfast.export.gguf.kinds import quantiser
from holdfast.export.gguf.make import Tools
from holdfast.export.subject import read_subject, subject_codec
from holdfast.export.words import of_learned
from support.chat_templates import SHAPES, codec_with
from support.shipped import make_adapter, make_family, measure_here

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed")
pytest.importorskip("xllamacpp", reason="the package xllamacpp is not installed")


EXPERTS = ("qwen3_moe", "mixtral", "olmoe")
OF_EXPERTS = {"target_modules": ["q_proj", "v_proj", "o_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}


@pytest.fixture(scope="module")
def made(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """An adapter on a family's random model."""
    folder = tmp_path_factory.mktemp("families")
    done: dict[str, Path] = {}

    def of(family: str) -> Path:
        if family not in done:
            base = make_family(family, assets.model, folder / family)
            done[family] = make_adapter(base, folder / f"{family}-adapter", **(OF_EXPERTS if family in EXPERTS else {}))
        return done[family]

    return of


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask little, and torch in this process; llama.cpp computes in one of its own."""
    for module in (exporting, judge):
        monkeypatch.setattr(module, "measure", measure_here)
    for name, much in (("ROWS", 4), ("PLACES", 6), ("PROMPTS", 2), ("LONGEST", 4), ("CHATS", 2)):
        monkeypatch.setattr(ask, name, much)


def order_of(adapter: Path, out: Path, kind: str = "gguf") -> ExportRequest:
    return ExportRequest(read_subject(adapter), kind, out, dict(os.environ), lambda _: None)


def test_the_values_that_choose_the_type_are_read_once_each(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, largest, read = read_subject(made("qwen2")), convert._largest, list[Any]()

    def reading(held: Any) -> float:
        read.append(held)
        return largest(held)

    monkeypatch.setattr(convert, "_largest", reading)
    convert.write_gguf(subject, subject_codec(subject), tmp_path / "it.gguf", "f16")
    assert 0 < len(read) <= len(subject.model.shapes)


LONG = [pytest.param(family, marks=pytest.mark.long) for family in ("mistral", "qwen2", "gemma", "gemma2", "mixtral", "olmoe")]


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe", "gemma3", *LONG])
def test_llama_cpp_computes_what_base_and_adapter_do(family: str, made: Any, tmp_path: Path) -> None:
    checked = export_gguf(order_of(made(family), tmp_path / "out"), ["f16"], Tools())["checked"]
    assert checked["engine"] == "llama.cpp" and checked["nmse"] <= 1e-4
    assert checked["greedy_equal"] and checked["token_ids_equal"] and checked["stops"]
    assert "FROM ./" in (tmp_path / "out/Modelfile").read_text()


SHORT = {"rope_theta": 10000.0, "original_max_position_embeddings": 32}
ROPE: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("qwen2", SHORT | {"rope_type": "yarn", "factor": 8.0}),
    "llama3": ("llama", SHORT | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    "linear": ("llama", {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0}),
}


@pytest.mark.parametrize("kind", ["yarn", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("llama3", "linear"))])
def test_scaled_rotary_positions_are_llama_cpps_too(kind: str, assets: SimpleNamespace, tmp_path: Path, monkeypatch: Any) -> None:
    family, settings = ROPE[kind]
    base = make_family(family, assets.model, tmp_path / "base", rope_parameters=settings)
    adapter = make_adapter(base, tmp_path / "adapter")
    checked = export_gguf(order_of(adapter, tmp_path / "out"), ["f16"], Tools())["checked"]
    assert checked["nmse"] <= 1e-4 and checked["greedy_equal"]
    if kind == "llama3":
        monkeypatch.setattr(convert, "rope_factors", lambda family: None)
    else:
        monkeypatch.setattr(gguf.GGUFWriter, "add_rope_scaling_factor", lambda self, value: None)
    with pytest.raises(Stop, match="NMSE"):
        export_gguf(order_of(adapter, tmp_path / "other"), ["f16"], Tools())


@pytest.mark.parametrize("more", [{"beta_fast": 64.0}, {"attention_factor": 1.5}, {"mscale": 0.7}])
def test_settings_of_yarn_that_are_not_converted_are_told(more: dict[str, float], made: Any, tmp_path: Path) -> None:
    subject = read_subject(made("qwen2"))
    config = subject.facts.config | {"rope_parameters": ROPE["yarn"][1] | more}
    with pytest.raises(Stop, match=next(iter(more))):
        order = replace(order_of(made("qwen2"), tmp_path / "out"), subject=replace(subject, facts=replace(subject.facts, config=config)))
        export_gguf(order, ["f16"], Tools())


@pytest.mark.parametrize(
    ("family", "changed", "told"),
    [
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": False}, "norm_topk_prob False"),
        ("OlmoeForCausalLM", {"norm_topk_prob": True}, "norm_topk_prob True"),
        ("OlmoeForCausalLM", {"clip_qkv": 8.0}, "clip_qkv 8.0"),
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": True, "mlp_only_layers": [0]}, "layers without experts"),
    ],
)
def test_settings_of_experts_that_are_not_converted_are_told(family: str, changed: dict[str, Any], told: str, made: Any) -> None:
    facts = read_subject(made("qwen2")).facts
    with pytest.raises(Stop, match=told):
        family_of(replace(facts, config=facts.config | {"architectures": [family]} | changed))


def test_an_adapter_in_gguf_is_compared_on_a_base_in_gguf(made: Any, tmp_path: Path) -> None:
    answer = export_gguf(order_of(made("llama"), tmp_path / "lora.gguf", "gguf-adapter"), [], Tools())
    assert answer["checked"]["nmse"] <= 1e-4 and [Path(file["path"]).name for file in answer["files"]] == ["lora.gguf"]


def test_quantised_files_are_held_to_their_own_budget(made: Any, tmp_path: Path) -> None:
    checked = export_gguf(order_of(made("qwen2"), tmp_path / "out"), ["q8_0"], Tools())["checked"]
    assert checked["budget"]["kl_per_token"] == 0.01 and 0 < checked["kl_per_token"] <= 0.01
    assert not [*(tmp_path / "out").glob("*bf16*")], "the 16 bits it was made of were not asked for"


def weak(adapter: Path, out: Path) -> Path:
    return make_adapter(Path(read_subject(adapter).base_name), out, size=0.01, target_modules=["q_proj", "down_proj"])


def test_a_gguf_without_a_weak_adapter_is_refused(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = weak(made("qwen2"), tmp_path / "adapter")
    without_adapter(monkeypatch)
    with pytest.raises(Stop, match="of what was learned"):
        export_gguf(order_of(adapter, tmp_path / "out"), ["f16"], Tools())


def test_what_a_type_rounds_away_is_told(made: Any, tmp_path: Path) -> None:
    types = export_gguf(order_of(weak(made("qwen2"), tmp_path / "adapter"), tmp_path / "out"), ["f16", "q4_0"], Tools())["checked"]["types"]
    assert types["f16"]["learned"]["seen"] and types["f16"]["learned"]["kept"] > 0.9
    assert not types["q4_0"]["learned"]["seen"] and "beside the rounding of q4_0" in str(of_learned(types["q4_0"]))
    (by,) = (line for line in (tmp_path / "out/README.md").read_text().splitlines() if line.startswith("| loaded by |"))
    assert "f16" in by and "q4_0" in by, "the figures of each file are in the card"


@pytest.mark.skipif(not (SHARED / "data/models/llama-260k").is_dir(), reason="the model llama-260k is not beside this checkout")
def test_a_sentencepiece_tokenizer_is_told_by_scores(tmp_path: Path) -> None:
    adapter = make_adapter(SHARED / "data/models/llama-260k", tmp_path / "adapter", size=0.05)
    checked = export_gguf(order_of(adapter, tmp_path / "out.gguf"), ["f16"], Tools())["checked"]
    assert checked["nmse"] <= 1e-4 and checked["token_ids_equal"]


Break = Callable[[pytest.MonkeyPatch], None]


def of_writer(name: str, change: Callable[..., tuple[Any, ...]]) -> Break:
    """A value that is told otherwise."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = getattr(gguf.GGUFWriter, name)
        monkeypatch.setattr(gguf.GGUFWriter, name, lambda self, *given: whole(self, *change(*given)))

    return broken


def of_tensor(name: str, change: Callable[[Any], Any]) -> Break:
    """A tensor that is written otherwise; what is expected of it stays."""

    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = convert._write

        def write(package: Any, writer: Any, tensors: list[Any]) -> None:
            whole(package, writer, [replace(t, values=lambda t=t: change(t.values())) if t.name == name else t for t in tensors])

        monkeypatch.setattr(convert, "_write", write)

    return broken


def without_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = convert._tensors
    monkeypatch.setattr(
        convert, "_tensors", lambda package, subject, family, kind, adapted: whole(package, subject, family, kind, kind == "f32")
    )


def swapped(one: str, other: str) -> Break:
    def broken(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = convert._write
        names = {one: other, other: one}

        def write(package: Any, writer: Any, tensors: list[Any]) -> None:
            whole(package, writer, [replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in tensors])

        monkeypatch.setattr(convert, "_write", write)

    return broken


def unturned(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = convert._tensors

    def tensors(package: Any, subject: Any, family: Any, kind: str, adapted: bool) -> Iterator[Any]:
        plain = SimpleNamespace(**vars(family), turned=lambda name, values: values)
        return whole(package, subject, family if kind == "f32" else plain, kind, adapted)

    monkeypatch.setattr(convert, "_tensors", tensors)


def other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp knows the usual ends by their text; so what ends these answers has another one."""
    of_writer("add_eos_token_id", lambda value: (7,))(monkeypatch)
    of_writer("add_token_list", lambda value: ([word.replace("<|im_end|>", "<|over|>") for word in value],))(monkeypatch)


BROKEN: dict[str, tuple[str, Break, str]] = {
    "the adapter left out": ("qwen2", without_adapter, "blk.0."),
    "RoPE theta lost": ("qwen2", of_writer("add_rope_freq_base", lambda value: (500000.0,)), "metadata"),
    "another epsilon": ("qwen2", of_writer("add_layer_norm_rms_eps", lambda value: (0.3,)), "metadata"),
    "queries and keys not turned for RoPE": ("llama", unturned, "blk.0.attn_"),
    "norms without their one": ("gemma", unturned, "norm"),
    "two projections swapped": ("qwen2", swapped("blk.1.attn_k.weight", "blk.1.attn_v.weight"), "blk.1.attn_"),
    "gate and up swapped": ("qwen2", swapped("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"), "blk.0.ffn_"),
    "a bias lost": ("qwen2", of_tensor("blk.1.attn_q.bias", lambda values: values * 0), "blk.1.attn_q.bias"),
    "one matrix transposed": ("qwen2", of_tensor("blk.1.attn_q.weight", lambda values: values.T.copy()), "blk.1.attn_q"),
    "the last norm doubled": ("qwen2", of_tensor("output_norm.weight", lambda values: values * 2), "output_norm"),
    "special tokens told as ordinary": ("qwen2", of_writer("add_token_types", lambda value: ([1] * len(value),)), "conversation 1"),
    "an end of text that it does not stop at": ("qwen2", other_end, "which ends the answers"),
    "the template of another model": (
        "qwen2", of_writer("add_chat_template", lambda value: ("{% for m in messages %}{{ m.content }}{% endfor %}",)), "conversation 1"),
    "merges lost": ("qwen2", of_writer("add_token_merges", lambda value: (value[:2],)), "in training"),
}  # fmt: skip


OFTEN = ("RoPE theta lost", "queries and keys not turned for RoPE", "norms without their one", "a bias lost")
OFTEN += ("an end of text that it does not stop at", "merges lost")


@pytest.mark.matrix
@pytest.mark.parametrize("fault", [fault if fault in OFTEN else pytest.param(fault, marks=pytest.mark.long) for fault in BROKEN])
def test_a_broken_gguf_is_refused(fault: str, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, breaking, reason = BROKEN[fault]
    adapter = made(family)
    breaking(monkeypatch)
    with pytest.raises(Stop) as stop:
        export_gguf(order_of(adapter, tmp_path / "out"), ["f16"], Tools())
    assert stop.value.code == 1 and reason in stop.value.message, stop.value.message
    assert not [*tmp_path.iterdir()], "a refused export leaves nothing"


def test_llama_cpps_own_converter_is_preferred(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with its command line, which writes what it was told to a file nobody can use."""
    (tmp_path / "llama.cpp").mkdir()
    said = "import sys, json; open(sys.argv[3], 'w').write('no GGUF'); json.dump(sys.argv[1:], open(%r, 'w'))"
    (tmp_path / "llama.cpp/convert_hf_to_gguf.py").write_text(said % str(tmp_path / "said.json"))
    with pytest.raises(Stop, match=r"llama\.cpp cannot use"):
        export_gguf(order_of(made("qwen2"), tmp_path / "out"), ["f16"], Tools(tmp_path / "llama.cpp"))
    merged, option, file, kind, value = json.loads((tmp_path / "said.json").read_text())
    assert (option, kind, value) == ("--outfile", "--outtype", "f16") and file.endswith("-f16.gguf") and merged


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--quantise", "q9_0"], "no such quantisation"),
        (["--quantise", "q4_k_m"], "llama-quantize"),
        (["--llama-cpp", "nowhere"], "not a checkout of llama.cpp"),
        (["--quantise", "q8_0,f16", "--out", "one.gguf"], "is one file"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(
    given: list[str], told: str, made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    out = [] if "--out" in given else ["--out", "out"]
    assert main(["export", str(made("qwen2")), "--to", "gguf", *out, *given]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "tools"), [("gguf", Tools()), ("gguf-adapter", Tools()), ("gguf-adapter", Tools(Path("llama.cpp")))])
def test_an_architecture_without_a_converter_is_told_which_way_there_is_before_anything_is_computed(
    kind: str, tools: Tools, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's own converts merged models: with it an adapter alone is still compared on a base that is converted here."""
    subject = read_subject(made("qwen2"))
    monkeypatch.setattr(exporting, "measure", None)
    other = replace(subject, facts=replace(subject.facts, config=subject.facts.config | {"architectures": ["PhiForCausalLM"]}))
    with pytest.raises(Stop, match=r"PhiForCausalLM has no converter") as stop:
        export_gguf(replace(order_of(made("qwen2"), tmp_path / "out", kind), subject=other), ["f16"], tools)
    assert "--to gguf --llama-cpp DIR" in stop.value.hint


def test_llama_quantize_is_found_in_a_checkout(tmp_path: Path) -> None:
    program = tmp_path / "build/bin/llama-quantize"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert quantiser(["q4_k_m"], tmp_path) == program


def test_a_disk_that_fails_when_the_export_is_there_takes_nothing_back(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = os.rmdir

    def fail(path: Any, **more: Any) -> None:
        if str(path).rpartition("/")[2].startswith(".holdfast-") and (tmp_path / "out").exists():
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        removed(path, **more)

    monkeypatch.setattr(os, "rmdir", fail)
    answer = export_gguf(order_of(made("llama"), tmp_path / "out"), ["f16"], Tools())
    assert [Path(file["path"]).exists() for file in answer["files"]] == [True] * len(answer["files"])


@pytest.mark.parametrize("begins", ["<|im_start|>", ""])
def test_a_text_begins_in_a_file_as_in_training_with_a_chat_template_too(begins: str, tmp_path: Path, monkeypatch: Any) -> None:
    """A server puts the token before plain text where the file says so, and keeps one of it in a conversation."""
    words = codec_with(tmp_path / "words", SHAPES["plain"], begins).folder
    settings = json.loads((words / "tokenizer_config.json").read_text()) | {"bos_token": "<|im_start|>"}
    (words / "tokenizer_config.json").write_text(json.dumps(settings))
    (words / "config.json").write_bytes((EMBEDDED["tiny"] / "config.json").read_bytes())
    base = make_family("qwen3", words, tmp_path / "base")
    checked = export_gguf(order_of(make_adapter(base, tmp_path / "adapter"), tmp_path / "out"), ["f16"], Tools())["checked"]
    assert checked["token_ids_equal"] and checked["token_ids_compared"] > 0
    (file,) = (tmp_path / "out").glob("*.gguf")
    assert bool(gguf.GGUFReader(file).fields["tokenizer.ggml.add_bos_token"].contents()) is bool(begins)
    assert ('TEMPLATE """{{ if .System }}<|im_start|>' in (tmp_path / "out/Modelfile").read_text()) is not bool(begins)
