"""An export is written when it computes what base + adapter compute, and refused with the reason when it does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from conftest import SHARED, holdfast
from holdfast.base.errors import Stop
from holdfast.base.files import write_json
from holdfast.base_model.folder import EMBEDDED, read_model
from holdfast.cli.main import main
from holdfast.config.config import Config
from holdfast.data.tokens.codec import load_codec
from holdfast.export import ask
from holdfast.export import export as exporting
from holdfast.export.card import _licence, _results, _what, _without_places
from holdfast.export.delta import read_delta
from holdfast.export.endings import end_of_turn, pad_token
from holdfast.export.export import ExportRequest, export
from holdfast.export.gguf.vocabulary import vocabulary
from holdfast.export.learned import learned_of, lost
from holdfast.export.merge import tied_embedding, write_merged
from holdfast.export.subject import Subject, read_subject
from holdfast.export.tensors import held_tensors, narrow, widen
from holdfast.export.words import of_stops, of_token_ids
from holdfast.planning.serving_limits import limits
from holdfast.run.folder import RunFolder
from support.rounding import assert_equal_but_for_rounding
from support.shipped import make_adapter, make_family, measure_here


def order_of(subject: Path, out: Path, kind: str = "merged", base: str | None = None) -> ExportRequest:
    return ExportRequest(read_subject(subject, base), kind, out, {}, lambda _: None)


@pytest.fixture(scope="module")
def made(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """A family's random model (`.base`) and a random adapter on it (`.adapter`)."""
    folder = tmp_path_factory.mktemp("families")
    done: dict[str, SimpleNamespace] = {}

    def of(family: str) -> SimpleNamespace:
        if family not in done:
            base = make_family(family, assets.model, folder / family)
            done[family] = SimpleNamespace(base=base, adapter=make_adapter(base, folder / f"{family}-adapter"))
        return done[family]

    return of


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, and little."""
    monkeypatch.setattr(exporting, "measure", measure_here)
    for name, much in (("ROWS", 8), ("PROMPTS", 2), ("LONGEST", 6)):
        monkeypatch.setattr(ask, name, much)


LONG = [pytest.param(family, marks=pytest.mark.long) for family in ("mistral", "qwen3", "gemma", "gemma2")]


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", *LONG])
def test_a_merged_model_computes_what_base_and_adapter_do(family: str, made: Any, tmp_path: Path, here: None) -> None:
    answer = export(order_of(made(family).adapter, tmp_path / "out"))
    checked = answer["checked"]
    assert checked["nmse"] <= 1e-4 and not checked["greedy"]["apart"] and checked["token_ids_equal"] and checked["stops"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert model.generation_config.eos_token_id == 2 and model.generation_config.pad_token_id == 0
    assert {Path(file["path"]).name for file in answer["files"]} >= {"README.md", "config.json", "model.safetensors", "tokenizer.json"}


ADAPTERS: dict[str, dict[str, Any]] = {
    "lora": {},
    "rank-stabilised": {"use_rslora": True},
    "dora": {"use_dora": True, "target_modules": ["q_proj", "down_proj"]},
    "ranks and alphas by pattern": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.*o_proj": 32}},
    "the output layer": {"target_modules": ["lm_head", "q_proj"]},
    "the embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "adalora": {"kind": "adalora"},
    "ia3": {"kind": "ia3", "target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    "single tokens": {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5, 200]},
    "single tokens by module": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [7]}},
    "a whole module": {"target_modules": ["q_proj"], "modules_to_save": ["input_layernorm"]},
}


OFTEN = ("dora", "adalora", "ia3", "ranks and alphas by pattern", "the output layer", "single tokens")


@pytest.mark.parametrize("kind", [kind if kind in OFTEN else pytest.param(kind, marks=pytest.mark.long) for kind in ADAPTERS])
@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_lora_is_merged_as_peft_computes_it(kind: str, made: Any, tmp_path: Path, here: None) -> None:
    base = made("qwen2").base
    adapter = make_adapter(base, tmp_path / "adapter", **ADAPTERS[kind])
    export(order_of(adapter, tmp_path / "ours"))
    untied = not json.loads((tmp_path / "ours/config.json").read_text())["tie_word_embeddings"]
    assert untied == (kind in ("the output layer", "the embedding")), "an adapter on one of the two is not on the other"
    if untied:  # PEFT's own merge writes into the matrix both share, so only what is computed can be compared
        return
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").float().state_dict()
    wide = AutoModelForCausalLM.from_pretrained(base).float()
    theirs = PeftModel.from_pretrained(wide, adapter).merge_and_unload().state_dict()
    for name, tensor in theirs.items():
        assert_equal_but_for_rounding(ours[name], tensor, 1, torch.bfloat16, name)  # as it is stored


@pytest.mark.filterwarnings("ignore")
def test_a_base_that_keeps_its_one_table_twice_is_written_untied_once_one_of_the_two_is_changed(made: Any, tmp_path: Path) -> None:
    """As Qwen3-0.6B's files do: who ties what tie_word_embeddings says would leave the changed output layer out."""
    base = Path(shutil.copytree(made("qwen2").base, tmp_path / "base"))
    tensors = load_file(base / "model.safetensors")
    twice = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(twice, base / "model.safetensors", {"format": "pt"})
    for target, tied in (("q_proj", True), ("lm_head", False), ("embed_tokens", False)):
        adapter = make_adapter(base, tmp_path / f"{target}-adapter", target_modules=[target])
        (tmp_path / target).mkdir()
        write_merged(read_subject(adapter), load_codec(base), tmp_path / target)
        assert json.loads((tmp_path / target / "config.json").read_text())["tie_word_embeddings"] is tied
        assert set(load_file(tmp_path / target / "model.safetensors")) == set(twice)


def test_an_adapter_scaled_by_the_root_of_its_rank_is_written_so_that_all_read_its_scale(made: Any, tmp_path: Path, here: None) -> None:
    """SGLang and llama.cpp's convert_lora_to_gguf.py divide lora_alpha by r, whatever use_rslora says."""
    adapter = make_adapter(made("qwen2").base, tmp_path / "adapter", use_rslora=True)
    checked = export(order_of(adapter, tmp_path / "out", "adapter"))["checked"]
    theirs, ours = (json.loads((folder / "adapter_config.json").read_text()) for folder in (adapter, tmp_path / "out"))
    assert theirs["use_rslora"] and not ours["use_rslora"]
    assert ours["lora_alpha"] / ours["r"] == pytest.approx(theirs["lora_alpha"] / theirs["r"] ** 0.5, rel=1e-12)
    assert checked["nmse"] < 1e-12 and "use_rslora" not in (tmp_path / "out/README.md").read_text()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [[3, 5], [3, 5, 10**6], {"lm_head": [3, 5, 200]}, None])
def test_single_tokens_that_the_base_has_no_rows_for_are_refused(given: Any, made: Any, tmp_path: Path) -> None:
    base = made("qwen2").base
    adapter = make_adapter(base, tmp_path / "adapter", **ADAPTERS["single tokens"])
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"trainable_token_indices": given}
    with pytest.raises(Stop, match=r"names no rows of|is made for \[3, 32\], the base model has \[2, 32\]"):
        read_delta(adapter / "adapter_model.safetensors", config, read_model(str(base)).shapes, "model.embed_tokens.weight")


@pytest.mark.parametrize("kind", ["adapter", "merged"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_named_and_nothing_is_written(kind: str, value: float, made: Any, tmp_path: Path) -> None:
    adapter = make_adapter(made("qwen2").base, tmp_path / "adapter")
    tensors = load_file(adapter / "adapter_model.safetensors")
    name = sorted(tensors)[-1]
    tensors[name][1, 2] = value
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Stop, match="NaN or Inf in 1 of") as stop:
        export(order_of(adapter, tmp_path / "out", kind))
    assert f"{name}: 1 of" in stop.value.message and "report" not in stop.value.hint
    assert not (tmp_path / "out").exists()


PROMISED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"type": kind}, {"peft_type": name}) for kind, name in (("dora", "LORA"), ("adalora", "ADALORA"), ("ia3", "IA3"))),
    ({"type": "prompt"}, {"peft_type": "PROMPT_TUNING"}),
    ({"modules_to_save": ["lm_head"]}, {"peft_type": "LORA", "modules_to_save": ["lm_head"]}),
    ({"trainable_token_indices": [3]}, {"peft_type": "LORA", "trainable_token_indices": [3]}),
    ({"target_parameters": ["self_attn.q_proj.weight"]}, {"peft_type": "LORA", "target_parameters": ["self_attn.q_proj.weight"]}),
]


@pytest.mark.parametrize(("adapter", "config"), PROMISED)
def test_what_is_called_mergeable_before_it_is_trained_is_merged_and_nothing_else(
    adapter: dict[str, Any], config: dict[str, Any], made: Any, tmp_path: Path
) -> None:
    (told,) = limits(Config.model_validate({"model": "tiny", "data": {"files": "x"}, "adapter": adapter}))
    adapter_folder, shapes = made("qwen2").adapter, read_model(str(made("qwen2").base)).shapes
    if adapter.get("type") == "ia3":
        adapter_folder = make_adapter(made("qwen2").base, tmp_path / "ia3", **ADAPTERS["ia3"])
    weights = adapter_folder / "adapter_model.safetensors"
    try:
        read_delta(weights, config, shapes, "model.embed_tokens.weight")
    except Stop as refused:
        assert "cannot be merged" in str(refused) and "runs everywhere" not in told
    else:
        assert "merged into the model it runs everywhere" in told


def test_numbers_are_rounded_as_torch_rounds_them() -> None:
    import torch

    values = np.concatenate([np.random.default_rng(0).normal(size=4096), [0.0, -0.0, 1e-40, 3e38]]).astype(np.float32)
    for name, kind in (("BF16", torch.bfloat16), ("F16", torch.float16)):
        some = values[np.abs(values) < 6e4] if name == "F16" else values
        expected = torch.from_numpy(some).to(kind)
        assert narrow(some, name).tobytes() == expected.view(torch.uint8).numpy().tobytes()
        assert np.array_equal(widen(narrow(some, name), name), expected.float().numpy())
    with pytest.raises(OverflowError):
        narrow(np.array([1e6], np.float32), "F16")


def weights(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})

    return broken


def swap(one: str, other: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return change


def settings(name: str, **values: Any) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        tree = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(tree | values))

    return broken


def template(change: Callable[[str], str]) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        file = folder / "chat_template.jinja"
        if file.exists():
            file.write_text(change(file.read_text()))
            return
        tree = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(tree | {"chat_template": change(tree["chat_template"])}))

    return broken


def tokens_swapped(folder: Path) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    words = tree["model"]["vocab"]
    one, other = [word for word, number in words.items() if number in (words["e"], words["a"])]
    words[one], words[other] = words[other], words[one]
    (folder / "tokenizer.json").write_text(json.dumps(tree))


def no_merges(folder: Path) -> None:
    tree = json.loads((folder / "tokenizer.json").read_text())
    tree["model"]["merges"] = tree["model"]["merges"][:-200]
    (folder / "tokenizer.json").write_text(json.dumps(tree))


def untied(tensors: dict[str, Any]) -> None:
    head = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = head[[*range(1, len(head)), 0]].clone()


def plus(name: str, much: float) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = tensors[name] + much

    return change


def of_rows(name: str, turn: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        tensors[name] = turn(tensors[name])

    return change


LAYER = "model.layers.1."
ATTENTION = LAYER + "self_attn."
ROPE = {"rope_theta": 1_000_000.0, "rope_type": "default"}
UNLOADABLE = {"extra_special_tokens": 5}
BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "two projections swapped": (weights(swap(ATTENTION + "k_proj.weight", ATTENTION + "v_proj.weight")), "layer 1"),
    "gate and up swapped": (weights(swap(LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight")), "layer 1"),
    "two layers' projections swapped": (
        weights(swap("model.layers.0.mlp.down_proj.weight", LAYER + "mlp.down_proj.weight")), "layer 0"),
    "heads of the query in another order": (weights(of_rows(ATTENTION + "q_proj.weight", lambda w: w.flip(0))), "layer 1"),
    "a bias lost": (weights(of_rows(ATTENTION + "q_proj.bias", lambda b: b * 0)), "layer 1"),
    "a norm's weight of another convention": (weights(plus(LAYER + "input_layernorm.weight", 1.0)), "layer 1"),
    "the last norm lost": (weights(of_rows("model.norm.weight", lambda w: w * 0 + 1)), ""),
    "an embedding shifted by one": (weights(of_rows("model.embed_tokens.weight", lambda w: w.roll(1, 0))), "the embedding"),
    "one row of the embedding zero": (
        weights(of_rows("model.embed_tokens.weight", lambda w: w.index_fill(0, w.new_tensor([1]).long(), 0.0))), "layer 0"),
    "a tensor full of zeros": (weights(of_rows(ATTENTION + "o_proj.weight", lambda w: w * 0)), "layer 1"),
    "NaN in a tensor": (weights(of_rows(LAYER + "mlp.up_proj.weight", lambda w: w * float("nan"))), "finite"),
    "a tied head untied to another": (
        lambda folder: (weights(untied)(folder), settings("config.json", tie_word_embeddings=False)(folder))[0], "likeliest token"),
    "RoPE theta of another model": (settings("config.json", rope_parameters=ROPE), "layer 0"),
    "RoPE scaled": (
        settings("config.json", rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}), "layer 0"),
    "another activation": (settings("config.json", hidden_act="relu"), "layer 0"),
    "norms with another epsilon": (settings("config.json", rms_norm_eps=0.5), "layer 0"),
    "another end of text": (settings("generation_config.json", eos_token_id=1), "which ends the answers of training"),
    "no end of text": (settings("generation_config.json", eos_token_id=None), "which ends the answers of training"),
    "the pad token is the end of text": (settings("generation_config.json", pad_token_id=2), "its pad token"),
    "the template of another model": (
        template(lambda text: "{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"), "conversation 1"),
    "a template without the generation prompt": (
        template(lambda text: text.replace("<|im_start|>assistant\n{% endif %}", "{% endif %}")), "conversation 1"),
    "a template that adds a system turn": (template(lambda text: "<|im_start|>system\nHi<|im_end|>\n" + text), "conversation 1"),
    "a tokenizer that transformers cannot load": (settings("tokenizer_config.json", **UNLOADABLE), "cannot load the tokenizer of"),
    "two tokens changed places": (tokens_swapped, "conversation 1"),
    "a tokenizer without its last merges": (no_merges, "in training"),
}  # fmt: skip


@pytest.mark.matrix
@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_export_is_refused(fault: str, made: Any, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, reason = BROKEN[fault]
    whole = exporting.write_merged_files

    def breaking(order: ExportRequest, codec: Any, folder: Path) -> dict[str, str]:
        known = whole(order, codec, folder)
        broken(folder)
        return known

    monkeypatch.setattr(exporting, "write_merged_files", breaking)
    with pytest.raises(Stop) as stop:
        export(order_of(made("qwen2").adapter, tmp_path / "out"))
    assert stop.value.code == 1 and reason in stop.value.message, stop.value.message
    assert not [*tmp_path.iterdir()], "a refused export leaves nothing"


ADAPTER_FAULTS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], None], str]] = {
    "the scale ignored": (lambda config, tensors: config.update(lora_alpha=config["r"]), "NMSE"),
    "the scale taken twice": (lambda config, tensors: config.update(lora_alpha=4 * config["r"]), "NMSE"),
    "rank-stabilised by mistake": (lambda config, tensors: config.update(use_rslora=True), "NMSE"),
    "one module left out": (lambda config, tensors: tensors.pop(next(iter(tensors))), "has only"),
    "the adapter lost": (lambda config, tensors: [tensor.zero_() for tensor in tensors.values()], "NMSE"),
}


@pytest.mark.matrix
@pytest.mark.parametrize("fault", ADAPTER_FAULTS)
def test_a_merge_of_another_adapter_is_refused(fault: str, made: Any, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a merge tool would that reads the adapter wrongly: what is merged is not what PEFT loads."""
    change, reason = ADAPTER_FAULTS[fault]
    other = tmp_path / "other"
    shutil.copytree(made("qwen2").adapter, other)
    config, tensors = json.loads((other / "adapter_config.json").read_text()), load_file(other / "adapter_model.safetensors")
    change(config, tensors)
    (other / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, other / "adapter_model.safetensors")
    whole = exporting.write_merged_files
    wrong = read_subject(other)
    monkeypatch.setattr(exporting, "write_merged_files", lambda order, codec, folder: whole(order_of(other, order.out), codec, folder))
    with pytest.raises(Stop) as stop:
        export(order_of(made("qwen2").adapter, tmp_path / "out"))
    assert wrong.tuned == other and reason in stop.value.message and not (tmp_path / "out").exists()


def weak(base: Path, out: Path, size: float) -> Path:
    """An adapter that learned so little that the base alone is within what an export of a strong one may differ by."""
    return make_adapter(base, out, size=size, target_modules=["q_proj", "down_proj"])


def only_base(order: ExportRequest, codec: Any, folder: Path) -> dict[str, str]:
    """Write the base as it is in place of the merge, with the export's tokenizer and settings."""
    other = replace(order.subject, tuned=order.subject.facts.folder, config={}, whole=order.subject.facts)
    write_merged(other, codec, folder, wide=order.wide)
    return {}


def half_merged(order: ExportRequest, codec: Any, folder: Path) -> dict[str, str]:
    """Merge, and put one changed matrix back as the base has it."""
    write_merged(order.subject, codec, folder, wide=True)
    name = "model.layers.0.self_attn.q_proj.weight"
    base = load_file(order.subject.facts.folder / "model.safetensors")[name]
    weights(lambda tensors: tensors.update({name: base.float()}))(folder)
    return {}


@pytest.mark.parametrize("wrong", [only_base, half_merged])
@pytest.mark.parametrize("size", [0.01, 0.002])
def test_what_the_base_alone_would_pass_is_no_proof(
    wrong: Any, size: float, made: Any, tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = weak(made("qwen2").base, tmp_path / "adapter", size)
    monkeypatch.setattr(exporting, "write_merged_files", wrong)
    with pytest.raises(Stop, match="of what was learned") as stop:
        export(order_of(adapter, tmp_path / "out"))
    assert stop.value.answer and stop.value.answer["checked"]["nmse"] < 1e-4, "the logits alone would have let it pass"
    assert not (tmp_path / "out").exists()


def test_what_16_bits_cannot_hold_is_written_in_32_and_told(made: Any, tmp_path: Path, here: None) -> None:
    said: list[str] = []
    order = replace(order_of(weak(made("qwen2").base, tmp_path / "adapter", 0.005), tmp_path / "out"), say=said.append)
    checked = export(order)["checked"]
    assert any("too small to be seen beside the rounding of BF16" in line for line in said)
    assert checked["nmse"] < 0.01 * checked["learned"]["nmse"] and checked["learned"]["seen"]


def test_an_adapter_that_changes_nothing_is_not_called_proven(made: Any, tmp_path: Path, here: None) -> None:
    for kind in ("merged", "adapter"):
        order = order_of(weak(made("qwen2").base, tmp_path / f"{kind}-adapter", 0.0), tmp_path / kind, kind)
        assert not export(order)["checked"]["learned"]["seen"]
        assert "too small to be seen" in (tmp_path / kind / "README.md").read_text()


def sides(noise: float, kept: float, places: int = 40) -> tuple[Any, Any, Any]:
    """Logits of base + adapter, of the base, and of an export that has so much of what was learned, with noise of its own."""
    draw = np.random.default_rng(3)
    base, learned = draw.normal(size=(places, 64)), 0.1 * draw.normal(size=(places, 64))
    exported = base + kept * learned + noise * draw.normal(size=(places, 64))
    return tuple(one.astype(np.float32) for one in (base + learned, base, exported))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("noise", "kept", "seen", "gone"), [(0.0, 1.0, True, False), (0.15, 1.0, True, False), (0.1, 0.0, True, True), (1.0, 0.0, False, False)]
)
def test_what_was_learned_is_sought_beside_rounding(noise: float, kept: float, seen: bool, gone: bool) -> None:
    found = learned_of(*sides(noise, kept))
    assert found and found["seen"] == seen and lost(found) == gone
    assert not seen or abs(found["kept"] - kept) < 4 * found["error"] + 0.01
    assert learned_of(*sides(noise, kept, places=1)) == {**(learned_of(*sides(noise, kept, places=1)) or {}), "seen": False}


def test_an_adapter_is_exported_with_what_it_needs(made: Any, tmp_path: Path, here: None) -> None:
    answer = export(order_of(made("qwen2").adapter, tmp_path / "out", "adapter"))
    assert answer["checked"]["engine"] == "peft" and answer["checked"]["nmse"] == 0.0
    assert "--max-lora-rank 8" in (tmp_path / "out/README.md").read_text()


def as_the_card_loads(out: Path) -> dict[str, Any]:
    """What the lines of Python in an export's card leave: model and tokenizer."""
    code = (out / "README.md").read_text().split("```python\n")[1].split("```")[0]
    found: dict[str, Any] = {}
    exec(code.replace("PATH", str(out)), found)
    return found


def with_settings(made: Any, tmp_path: Path, ids: dict[str, int | None], **tokens: Any) -> tuple[Path, Path]:
    """The family qwen2 with other special tokens by its files, and the adapter on it."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(made("qwen2").base, base)
    shutil.copytree(made("qwen2").adapter, adapter)
    settings("adapter_config.json", base_model_name_or_path=str(base))(adapter)
    for name in ("config.json", "generation_config.json"):
        settings(name, **ids)(base)
    settings("tokenizer_config.json", **tokens)(base)
    return base, adapter


@pytest.mark.parametrize("kind", ["adapter", "merged"])
def test_an_export_stops_as_its_card_loads_it_where_its_base_has_another_end(made: Any, tmp_path: Path, here: None, kind: str) -> None:
    base, adapter = with_settings(made, tmp_path, {"eos_token_id": 1}, eos_token="<|im_start|>")
    codec = load_codec(base)
    end = end_of_turn(codec)
    answer = export(order_of(adapter, tmp_path / "out", kind))
    loaded = as_the_card_loads(tmp_path / "out")
    model, head = loaded["model"], loaded["model"].get_output_embeddings()
    assert end == 2 and end in model.generation_config.eos_token_id
    with torch.no_grad():  # the end is always the likeliest token
        head.bias = torch.nn.Parameter(torch.zeros(head.out_features, dtype=head.weight.dtype).index_fill(0, torch.tensor(end), 1e4))
    given = loaded["tokenizer"].apply_chat_template(
        [{"role": "user", "content": "Is it?"}], add_generation_prompt=True, return_tensors="pt"
    )
    assert model.generate(**given, do_sample=False, max_new_tokens=6)[0].tolist() == [*given["input_ids"][0].tolist(), end]
    told = (tmp_path / "out/README.md").read_text()
    assert ("by the base's own it stops at 1 only" in told) == (kind == "adapter") == ("--generation-config PATH" in told)
    assert answer["checked"]["stops"] and (of_stops(answer["checked"]) == "yes") == (kind == "merged")


@pytest.mark.parametrize(
    ("ids", "tokens", "pad"),
    [
        ({"pad_token_id": 2}, {"pad_token": "<|im_end|>"}, 2),  # its own end of text
        ({"pad_token_id": None}, {"pad_token": None}, None),
        ({"pad_token_id": 300}, {"pad_token": None}, None),  # an ordinary word
        ({"pad_token_id": None}, {"pad_token": "<|im_start|>"}, 1),
    ],
)
def test_an_export_pads_as_its_base_does(made: Any, tmp_path: Path, here: None, ids: Any, tokens: Any, pad: int | None) -> None:
    base, adapter = with_settings(made, tmp_path, ids, **tokens)
    for kind, names in (("adapter", ["generation_config.json"]), ("merged", ["generation_config.json", "config.json"])):
        out = tmp_path / f"exported-{kind}"
        assert export(order_of(adapter, out, kind))["checked"]["stops"]
        assert [json.loads((out / name).read_text())["pad_token_id"] for name in names] == [pad] * len(names)
    writer = Mock()
    vocabulary(load_codec(base), 0, (2,), pad_token(load_codec(base), read_model(str(base))), writer)
    assert [call.args for call in writer.add_pad_token_id.mock_calls] == ([] if pad is None else [(pad,)])


@pytest.mark.parametrize("others", [["mtp.layers."], ["mtp.layers.", "model.visual.layers."], ["model.layers.", "mtp.layers."]])
def test_changes_go_to_the_language_model_and_not_to_other_layers_of_that_number(made: Any, others: list[str]) -> None:
    """As AutoModelForCausalLM names modules of a wrapped model, whose files have further layers 0."""
    family = made("qwen2")
    own = read_model(str(family.base)).shapes
    inner = "model." if "model.layers." in others else "model.language_model."
    shapes = {name.replace("model.", inner, 1): shape for name, shape in own.items()}
    shapes |= {name.replace("model.layers.", other): one for other in others for name, one in own.items() if ".layers.0." in name}
    config = json.loads((family.adapter / "adapter_config.json").read_text())
    changes = read_delta(family.adapter / "adapter_model.safetensors", config, shapes, None).changes
    wanted = read_delta(family.adapter / "adapter_model.safetensors", config, own, None).changes
    assert {*changes} == {name.replace("model.", inner, 1) for name in wanted}


def test_changes_that_may_be_of_two_places_are_refused(made: Any) -> None:
    family = made("qwen2")
    own = read_model(str(family.base)).shapes
    shapes = {name.replace("model.", f"model.{part}.", 1): shape for part in ("draft", "language_model") for name, shape in own.items()}
    config = json.loads((family.adapter / "adapter_config.json").read_text())
    with pytest.raises(Stop, match="may be any of"):
        read_delta(family.adapter / "adapter_model.safetensors", config, shapes, None)


def test_changes_of_layers_that_are_one_weight_in_the_files_are_refused(made: Any) -> None:
    family = made("qwen2")
    shapes = {name: shape for name, shape in read_model(str(family.base)).shapes.items() if "layers.1.mlp.down_proj" not in name}
    config = json.loads((family.adapter / "adapter_config.json").read_text())
    with pytest.raises(Stop, match=r"changes model.layers.0.mlp.down_proj.weight of the base model more than once"):
        read_delta(family.adapter / "adapter_model.safetensors", config, shapes, None)


def test_token_ids_are_not_called_equal_where_the_bases_own_tokenizer_cannot_be_loaded(made: Any, tmp_path: Path, here: None) -> None:
    _, adapter = with_settings(made, tmp_path, {}, **UNLOADABLE)
    answer = export(order_of(adapter, tmp_path / "out"))
    assert of_token_ids(answer["checked"]).startswith("not compared: transformers cannot load this tokenizer, nor the base's (")
    assert "not compared: transformers cannot load" in (tmp_path / "out" / "README.md").read_text()


def whole_of(adapter: Path, model: Path) -> Subject:
    """What a run of type full or layers leaves in place of an adapter."""
    return replace(read_subject(adapter), tuned=model, config={}, whole=read_model(str(model)))


def test_a_model_that_was_trained_as_a_whole_is_exported_as_it_is(made: Any, tmp_path: Path, here: None) -> None:
    shutil.copytree(made("qwen2").base, tmp_path / "model")
    weights(lambda tensors: tensors.update({name: one.float() * 1.003 for name, one in tensors.items()}))(tmp_path / "model")
    order = replace(order_of(made("qwen2").adapter, tmp_path / "out"), subject=whole_of(made("qwen2").adapter, tmp_path / "model"))
    answer = export(order)
    assert answer["checked"]["nmse"] == 0.0 and "weights themselves were trained" in (tmp_path / "out/README.md").read_text()
    assert load_file(tmp_path / "out/model.safetensors")["model.norm.weight"].dtype.itemsize == 4, "fp32, as it was trained"
    with pytest.raises(Stop, match="has no adapter: weights of the model itself were trained"):
        export(replace(order, kind="adapter", out=tmp_path / "other"))


@pytest.mark.long
def test_a_run_that_trained_all_weights_is_exported_and_verified(config_of: Any, tmp_path: Path) -> None:
    config = config_of("run", model="tiny", train={"steps": 2}, data={"held_out": 0.2}, adapter={"type": "full"})
    assert holdfast("train", config, "--run", tmp_path / "run").returncode == 0
    done = holdfast("export", tmp_path / "run", "--to", "merged", "--out", tmp_path / "out", "--html", tmp_path / "page.html", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["checked"]["nmse"] <= 1e-4, done.stderr
    assert "it equals the trained model" in (tmp_path / "page.html").read_text()
    done = holdfast("verify", tmp_path / "run/model", "--generate", 2, "--json")
    assert done.returncode in (0, 1) and json.loads(done.stdout)["kind"] == "held_out", done.stderr
    done = holdfast("serve", tmp_path / "run")
    assert done.returncode == 2 and "vllm serve" in done.stderr


def test_large_models_are_cut_into_shards(made: Any, tmp_path: Path) -> None:
    from holdfast.data.tokens.codec import load_codec

    subject = read_subject(made("llama").adapter)
    written = write_merged(subject, load_codec(made("llama").base), tmp_path, most=30_000)
    assert len(written) > 2
    held = held_tensors(tmp_path)
    assert set(held) == set(subject.facts.shapes)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.model_type == "llama"


def test_what_is_written_is_bounded_by_a_stretch_of_rows(made: Any) -> None:
    subject = read_subject(made("qwen2").adapter)
    tied = tied_embedding(subject)
    delta = read_delta(subject.weights, subject.config, subject.facts.shapes, tied)
    name, change = next(iter(delta.changes.items()))
    base = held_tensors(subject.facts.folder)[name].rows()
    whole = change.applied(base, 0, len(base))
    parts = np.concatenate([change.applied(base[at : at + 5], at, min(at + 5, len(base))) for at in range(0, len(base), 5)])
    assert_equal_but_for_rounding(torch.from_numpy(parts), torch.from_numpy(whole), 16)  # the rank, and the weight


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("no such folder", "is not a folder"),
        ("no adapter", "holds no adapter"),
        ("the base is gone", "--base DIR"),
        ("another base", "the base model has"),
        ("the place is taken", "exists"),
        ("no folder for it", "mkdir -p"),
        ("prompt tuning", "cannot be merged"),
        ("a quantised base", "16 bits"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(what: str, told: str, made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject, out, base = tmp_path / "adapter", tmp_path / "out", made("qwen2").base
    shutil.copytree(made("qwen2").adapter, subject)
    config = json.loads((subject / "adapter_config.json").read_text())
    if what == "no such folder":
        subject = tmp_path / "nowhere"
    elif what == "no adapter":
        (subject / "adapter_config.json").unlink()
    elif what == "the base is gone":
        (subject / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": str(tmp_path / "gone")}))
    elif what == "another base":
        base = made("qwen3").base
    elif what == "the place is taken":
        out.mkdir()
    elif what == "no folder for it":
        out = tmp_path / "a" / "b"
    elif what == "prompt tuning":
        (subject / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "PROMPT_TUNING"}))
    elif what == "a quantised base":
        shutil.copytree(base, tmp_path / "base")
        settings("config.json", quantization_config={"quant_method": "bitsandbytes"})(tmp_path / "base")
        base = tmp_path / "base"
    given = [] if what == "the base is gone" else ["--base", str(base)]
    assert main(["export", str(subject), "--to", "merged", "--out", str(out), *given]) in (1, 2)
    assert told in capsys.readouterr().err


def test_a_full_disk_is_known_before(made: Any, small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(made("qwen2").adapter), "--to", "merged", "--out", str(small_disk / "out")]) == 1
    assert "the export needs" in capsys.readouterr().err


def test_a_run_is_exported_as_a_user_does_it_and_not_on_another_base(config_of: Any, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED["tiny"], base)
    done = holdfast("train", config_of("run", model=str(base), train={"steps": 2}), "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    done = holdfast("export", tmp_path / "run", "--to", "merged", "--out", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["checked"]["nmse"] <= 1e-4 and "Held-out" not in answer
    manifest = json.loads((tmp_path / "out/holdfast.json").read_text())
    assert manifest["data_sha256"] and manifest["adapter_sha256"]
    assert (manifest["run"], manifest["adapter"], manifest["base"]) == ("run", "adapter", base.name)
    told = [file.name for file in (tmp_path / "out").iterdir() if str(tmp_path).encode() in file.read_bytes()]
    assert not told, "what is given away names no folder of the machine it was made on"
    weights(plus("model.norm.weight", 0.5))(base)
    done = holdfast("export", tmp_path / "run", "--to", "merged", "--out", tmp_path / "other", "--json")
    assert done.returncode == 1 and "is not the base model that this run began with" in done.stderr


@pytest.mark.skipif(not (SHARED / "data/models/llama-260k").is_dir(), reason="the model llama-260k is not beside this checkout")
def test_a_sentencepiece_model_in_32_bits_keeps_its_precision(tmp_path: Path, here: None) -> None:
    base = SHARED / "data/models/llama-260k"
    answer = export(order_of(make_adapter(base, tmp_path / "adapter", size=0.05), tmp_path / "out"))
    assert answer["checked"]["nmse"] < 1e-10 and answer["checked"]["greedy_equal"]


def test_a_card_says_in_which_precision_a_merge_is() -> None:
    subject: Any = SimpleNamespace(model=SimpleNamespace(stored="BF16"), whole=None)
    assert "in F32: rounded to the base model's own BF16, too little" in _what(subject, "merged", {"type": "F32"})
    assert _what(subject, "merged", {"type": "BF16"}) == "base and adapter merged, in the base model's own precision"
    assert _what(subject, "adapter", {}) == "a PEFT adapter"


def test_a_card_gives_the_figures_of_what_is_exported_alone(tmp_path: Path) -> None:
    """The run measured what it left at its end: the best state, and none of its checkpoints."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write_config(Config(model="tiny", data={"files": ["rows.jsonl"]}))
    loss = {"eval_base": 5.25, "eval_tuned": 4.5}
    for step, told in ((200, "after 200 of 300 steps."), (300, "after 300 steps."), (None, "after 300 steps.")):
        write_json(run.summary_file, {"steps": 300, "artifact_step": step, "loss": loss})
        for tuned in (run.adapter, run.path / "model"):
            found = _results(SimpleNamespace(run=run, tuned=tuned))  # type: ignore[arg-type]
            assert "5.2500 (base), 4.5000 (this), " + told in found
    found = _results(SimpleNamespace(run=run, tuned=run.checkpoints / "step-00000050"))  # type: ignore[arg-type]
    assert "4.5" not in found and "step-00000050, a state on the way" in found
    assert "No held-out loss" in _results(SimpleNamespace(run=None, tuned=tmp_path))  # type: ignore[arg-type]


def test_no_place_of_this_machine_stands_in_a_card() -> None:
    """A card is published: a bucket with its key, a home folder and a mount are not its readers'."""
    settings = {"save": {"to": "s3://key:secret@bucket/ours", "snapshot_dir": "/mnt/of-ann/snapshots", "keep": 3}}
    settings |= {"adapter": {"start": "~/runs/one", "targets": ["q_proj", "/srv/x"]}, "template": "{# a #}\n/x", "ratio": "1/2"}
    told = _without_places(settings)
    assert told["save"] == {"to": "ours", "snapshot_dir": "snapshots", "keep": 3}
    assert told["adapter"] == {"start": "one", "targets": ["q_proj", "x"]}
    assert (told["template"], told["ratio"]) == (settings["template"], "1/2")


def test_a_card_names_the_base_models_licence(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: apache-2.0\ntags: [x]\n---\n# Base\n")
    assert _licence(tmp_path) == {"license": "apache-2.0"}
    (tmp_path / "README.md").write_text("---\n: [\n---\n")
    assert _licence(tmp_path) == {}


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (lambda name: False, "holds nothing"),
        (lambda name: "layers.1" not in name, "none for model.layers.1."),
        (lambda name: "v_proj" not in name, "none for model.layers.0.self_attn.v_proj"),
    ],
    ids=["nothing, as ZeRO-3 leaves it", "one layer less", "one kind of module less"],
)
def test_an_adapter_that_is_not_whole_is_refused(made: Any, tmp_path: Path, left: Callable[[str], bool], told: str) -> None:
    base = made("qwen2").base
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "v_proj", "down_proj"])
    read_subject(adapter, str(base))
    tensors = load_file(adapter / "adapter_model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if left(name)}, adapter / "adapter_model.safetensors", {"format": "pt"})
    (tmp_path / "global_step30").mkdir()
    with pytest.raises(Stop, match="is not a whole adapter") as stop:
        read_subject(adapter, str(base))
    assert told in stop.value.message and "['down_proj', 'q_proj', 'v_proj']" in stop.value.message
    assert "stage3_gather_16bit_weights_on_model_save" in str(stop.value.hint) and "global_step30 with zero_to_fp32.py" in str(
        stop.value.hint
    )


def test_an_adapter_on_chosen_layers_is_whole(made: Any, tmp_path: Path) -> None:
    base = made("qwen2").base
    for number, chosen in enumerate(({"layers_to_transform": [1]}, {"target_modules": ["model.layers.0.self_attn.q_proj"]})):
        assert read_subject(make_adapter(base, tmp_path / str(number), **{"target_modules": ["q_proj"]} | chosen), str(base)).config
