"""What an export may differ by goes by what the base alone costs; one type refused leaves the others; llama.cpp's converter is found."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.base_model.folder import read_model
from holdfast.export import ask
from holdfast.export import export as whole
from holdfast.export.export import ExportRequest, export
from holdfast.export.gguf import export as exporting
from holdfast.export.gguf import judge, kinds
from holdfast.export.gguf.export import export_gguf
from holdfast.export.gguf.make import Tools, converter
from holdfast.export.proof import EXACT, Comparison, beyond
from holdfast.export.subject import read_subject
from holdfast.report.shipped.exported import lines
from support.shipped import make_adapter, make_family, measure_here

pytest.importorskip("gguf", reason="the package gguf is not installed")
pytest.importorskip("xllamacpp", reason="the package xllamacpp is not installed")


def figures(nmse: float, kl: float = 1e-4, top1: float = 1.0, greedy: bool = True) -> Json:
    return {"nmse": nmse, "kl_per_token": kl, "top1_agreement": top1, "greedy_equal": greedy, "greedy": {"apart": int(not greedy)}}


def verdict(
    monkeypatch: pytest.MonkeyPatch, kind: str, seen: Json, base: Json | None, proven: bool = False, tensor: str | None = None
) -> Comparison:
    """What is judged of a file whose figures are these, where the base alone has those; tensor: one that is not as it should be."""
    compared = Comparison(dict(seen), beyond(seen, kinds.budget_of(kind)))
    job: Any = SimpleNamespace(
        order=SimpleNamespace(say=lambda _: None, subject=SimpleNamespace(told="it", held_otherwise=dict, whole=None), env={}),
        reference=None,
    )
    job.questions = job.work = None
    monkeypatch.setattr(judge, "compare_gguf", lambda *_: compared)
    monkeypatch.setattr(judge, "first_tensor", lambda *_: tensor)
    monkeypatch.setattr(judge, "_of_base", lambda *_: base)
    return judge.judged(job, Path("it.gguf"), kind, proven)


BF16_MODEL = figures(2.4e-4)  # thirty layers in bf16, the base alone in f16


@pytest.mark.parametrize(
    ("kind", "seen", "base"),
    [
        ("f16", figures(9e-5), None),
        ("f16", figures(4e-4), BF16_MODEL),
        ("q4_0", figures(0.1, kl=0.5, top1=0.58), figures(0.1, kl=0.3, top1=0.6)),
    ],
)
def test_what_the_base_alone_costs_is_allowed(kind: str, seen: Json, base: Json | None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not verdict(monkeypatch, kind, seen, base).reasons


@pytest.mark.parametrize(
    ("kind", "seen", "base", "tensor"),
    [
        ("f16", figures(8e-4), BF16_MODEL, None),
        ("f16", figures(4e-4), None, None),
        ("f16", figures(4e-4), BF16_MODEL, "blk.0.attn_q.weight"),
        ("f16", figures(3e-3), figures(2e-3), None),  # such a base is converted wrong itself
        ("q4_0", figures(0.1, kl=0.7), figures(0.1, kl=0.3), None),
        ("q4_0", figures(0.1, kl=0.5, top1=0.4), figures(0.1, kl=0.3, top1=0.6), None),
    ],
)
def test_what_is_beyond_it_is_refused(
    kind: str, seen: Json, base: Json | None, tensor: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdict(monkeypatch, kind, seen, base, tensor=tensor)
    assert found.reasons and found.figures["first_layer"]


def test_rounding_alone_may_cost_more_where_a_wider_file_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not verdict(monkeypatch, "bf16", figures(8e-4), None, proven=True).reasons
    assert verdict(monkeypatch, "bf16", figures(8e-4), None, proven=False).reasons
    lost = verdict(monkeypatch, "bf16", figures(5e-3), None, proven=True)
    assert lost.reasons and "bf16 keeps too few digits" in lost.figures["first_layer"]


@pytest.mark.parametrize(
    ("kl", "proven", "kept"), [(0.0103, True, True), (0.0103, False, False), (0.013, True, False)], ids=["chance", "not proven", "beyond"]
)
def test_a_coarse_type_is_refused_where_its_kl_is_beyond_by_more_than_chance(
    kl: float, proven: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file in 16 bits is equal, so what is left to be judged is what the type costs: a mean over a few hundred positions."""
    base = figures(1e-3, kl=0.004)
    found = verdict(monkeypatch, "q8_0", figures(3e-3, kl=kl) | {"kl_error": 0.001}, base, proven=proven)
    assert bool(found.reasons) != kept
    assert not kept or found.figures["budget"]["kl_per_token"] == pytest.approx(0.012)


@pytest.fixture(scope="module")
def adapter(assets: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    return make_adapter(make_family("qwen2", assets.model, folder / "base"), folder / "adapter")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ask little, and torch in this process; what the export says."""
    for module in (exporting, judge, whole):
        monkeypatch.setattr(module, "measure", measure_here)
    for name, much in (("ROWS", 4), ("PLACES", 6), ("PROMPTS", 2), ("LONGEST", 4), ("CHATS", 2)):
        monkeypatch.setattr(ask, name, much)
    monkeypatch.setenv("PATH", "")
    return []


def order_of(adapter: Path, out: Path, said: list[str], kind: str = "gguf") -> ExportRequest:
    return ExportRequest(read_subject(adapter), kind, out, dict(os.environ), said.append)


def test_the_base_alone_is_made_and_asked(adapter: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXACT, "nmse", 1e-12)
    checked = export_gguf(order_of(adapter, tmp_path / "out", said), ["f16"], Tools())["checked"]
    assert 0 < checked["base_alone"]["nmse"] < 1e-4 and checked["budget"]["nmse"] == 2 * checked["base_alone"]["nmse"]
    assert [file.name for file in (tmp_path / "out").glob("*.gguf")] == ["adapter-f16.gguf"]


@pytest.mark.parametrize("wide", [True, False])
def test_of_a_model_trained_as_a_whole_rounding_to_16_bits_is_told_by_a_file_of_32(
    wide: bool, adapter: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base's weights may have 16 bits or fewer to begin with, and cost nothing in 16."""
    model = tmp_path / "model"
    base = read_subject(adapter).facts.folder
    order = order_of(adapter, tmp_path / "out", said)
    export(replace(order_of(adapter, model, said, "merged"), wide=True))
    order = replace(order, subject=replace(order.subject, tuned=model, config={}, whole=read_model(str(model))))
    assert order.subject.facts.folder == base
    compare, asked = judge.compare_gguf, list[str]()

    def compared(file: Path, lora: None, kind: str, *more: Any) -> Comparison:
        asked.append(file.name)
        found = compare(file, lora, kind, *more)
        far = 1e-9 if file.name.startswith("base-") or (wide and kind == "f32") else 4e-4
        seen = found.figures | {"nmse": far, "kl_per_token": 1e-4, "learned": None}
        return replace(found, figures=seen, reasons=beyond(seen, kinds.budget_of(kind)))

    monkeypatch.setattr(judge, "compare_gguf", compared)
    if not wide:
        with pytest.raises(Stop, match=r"NMSE of its logits is 4\.00e-04"):
            export_gguf(order, ["f16"], Tools())
        return
    checked = export_gguf(order, ["f16"], Tools())["checked"]
    assert checked["budget"]["nmse"] == 1e-3 and [file.suffix for file in (tmp_path / "out").glob("*.gguf")] == [".gguf"]
    assert asked == ["adapter-f16.gguf", "wide-f32.gguf"], "each is asked once, and not the base, which tells nothing of it"


def test_a_type_that_is_refused_leaves_the_others(adapter: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds._KL, "q8_0", (0.0, 1.0))
    monkeypatch.setattr(judge, "_of_base", lambda *_: None)
    answer = export_gguf(order_of(adapter, tmp_path / "out", said), ["f16", "q8_0", "q4_k_m"], Tools())
    assert {*answer["refused"]} == {"q8_0", "q4_k_m"} and "llama-quantize" in answer["refused"]["q4_k_m"][0]
    assert [file.name for file in (tmp_path / "out").glob("*.gguf")] == ["adapter-f16.gguf"]
    assert "adapter-f16.gguf" in (tmp_path / "out/Modelfile").read_text() and any(line.startswith("q8_0 is left out") for line in said)
    with pytest.raises(Stop, match="q8_0"):
        export_gguf(order_of(adapter, tmp_path / "other", said), ["q8_0"], Tools())
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("kind", "holds"), [("f16", "bf16"), ("bf16", "f16")])
def test_a_type_of_16_bits_that_is_refused_leaves_the_others(
    kind: str, holds: str, adapter: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """f16 where a value is too large for it, bf16 where it keeps too few digits; `holds` is the type of 16 bits that can be made."""
    monkeypatch.setattr(exporting, "sixteen", lambda _: holds)
    judging = exporting.judged

    def judged(job: Any, file: Path, of: str, proven: bool) -> Comparison:
        return Comparison({}, ["too much is lost"]) if of == kind else judging(job, file, "q8_0", proven)

    monkeypatch.setattr(exporting, "judged", judged)
    answer = export_gguf(order_of(adapter, tmp_path / "out", said), [kind, "q8_0"], Tools())
    assert answer["refused"] == {kind: ["too much is lost"]}
    assert [file.name for file in (tmp_path / "out").glob("*.gguf")] == ["adapter-q8_0.gguf"]
    with pytest.raises(Stop, match=f"{kind}: too much is lost"):
        export_gguf(order_of(adapter, tmp_path / "other", said), [kind], Tools())


def test_a_vocabulary_that_differs_is_named_where_rounding_costs_too_much_besides(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen, told in ((figures(9e-5), "compute alike"), (figures(2.4e-4), "are alike")):
        compared = Comparison(seen, ["conversation 1 is other tokens"], numeric=False)
        job: Any = SimpleNamespace(order=SimpleNamespace(subject=None))
        monkeypatch.setattr(judge, "first_tensor", lambda *_: None)
        lead = judge.lead(job, Path("it.gguf"), "f16", compared, proven=False)
        assert lead.startswith("the vocabulary") and told in lead and "RoPE" not in lead


CONVERTER = "convert_hf_to_gguf.py"


def test_llama_cpps_converter_is_found_on_the_path_and_as_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert converter(Tools()) is None
    for name in ("path", "package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONVERTER).write_text("raise SystemExit(3)\n")
        (tmp_path / name / CONVERTER).chmod(0o755)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "package")])
    assert converter(Tools()) == tmp_path / "package" / CONVERTER
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert converter(Tools()) == tmp_path / "path" / CONVERTER
    assert converter(Tools(tmp_path)) == tmp_path / CONVERTER


def test_a_converter_that_was_only_found_and_fails_is_told_and_ours_used(
    adapter: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CONVERTER).write_text("raise SystemExit('Qwen2 is not for me')\n")
    (tmp_path / CONVERTER).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    checked = export_gguf(order_of(adapter, tmp_path / "out", said), ["f16"], Tools())["checked"]
    assert checked["converter"] == "holdfast" and lines(checked)[0][1] == "llama.cpp, f16, converted by holdfast"
    assert any("Qwen2 is not for me" in line for line in said)


@pytest.mark.parametrize(("left", "written"), [(5e-3, "float32"), (5e-4, "bfloat16")])
def test_a_merge_whose_rounding_loses_too_much_is_written_in_fp32(
    left: float, written: str, adapter: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is computed with the merge in 16 bits is told to be `left` away; with the one in fp32, what it is."""
    proves = whole.prove

    def prove(order: ExportRequest, questions: Any, folder: Path, work: Path) -> Comparison:
        found = proves(order, questions, folder, work)
        if folder.name.endswith(".wide"):
            return found
        worse = found.figures | {"nmse": left}
        return replace(found, figures=worse, reasons=beyond(worse, EXACT))

    monkeypatch.setattr(whole, "prove", prove)
    answer = whole.export(order_of(adapter, tmp_path / "out", said, "merged"))
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == written
    assert answer["checked"]["rounding"] and any("it differs" in line for line in said)


def test_a_conversation_is_rendered_and_tokenised_as_a_server_does() -> None:
    """llama.cpp takes the opening token out of a rendered conversation where the file adds it, and puts it back when it tokenises."""
    from holdfast.export.gguf.engine import _chat

    asked: list[dict[str, Any]] = []

    def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        return {"prompt": "hello"} if path == "/apply-template" else {"tokens": [2, 5] if body["add_special"] else [5]}

    assert _chat(ask, [{"role": "user", "content": "hello"}]) == [2, 5]
