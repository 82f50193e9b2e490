"""`verify --suite`: tasks of lm-eval asked of both models, with a paired test on what it logged."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from conftest import holdfast, make_rows, write_rows
from holdfast.base.errors import Stop
from holdfast.base_model.folder import EMBEDDED
from holdfast.cli.main import main
from holdfast.data.templates.template import load_template
from holdfast.trainer.jobs import suite as job
from holdfast.verify import compare
from holdfast.verify import suite as suites
from holdfast.verify.stats import sign_test
from holdfast.verify.suite import Suite, ask_suite, paired_tests, read_suite
from support.chat_templates import SHAPES, codec_with
from support.shipped import make_adapter
from support.suite import make_suite

PARTS = [{"name": name, "model": "m", "adapter": None, "pad": 0} for name in ("base", "tuned")]


def told_of(values: list[float], better: bool = True, key: str = "acc,none", hashes: str = "h") -> dict[str, Any]:
    """What the child writes of one task, with one figure for each question."""
    samples = {str(n): {"hash": f"{hashes}{n}", "values": {"acc,none": value}} for n, value in enumerate(values)}
    task = {"version": 1.0, "higher_is_better": {"acc": better}, "results": {key: sum(values) / len(values)}, "samples": samples}
    return {"package": "0.4.13", "tasks": {"words": task}}


def asked(monkeypatch: pytest.MonkeyPatch, folder: Path, base: dict[str, Any], tuned: dict[str, Any]) -> dict[str, Any]:
    def child(job: str, place: Path, request: dict[str, Any], env: Mapping[str, str]) -> None:
        assert job == "suite" and [set(part) for part in request["parts"]] == [{"name", "model", "adapter"}] * 2
        for name, found in (("base", base), ("tuned", tuned)):
            (place / f"{name}.suite.json").write_text(json.dumps(found))

    monkeypatch.setattr(suites, "ask", child)
    return ask_suite(Suite(("words",), None, None, False), PARTS, folder, {})["tasks"][0]


def test_questions_are_paired_and_the_metric_says_which_way_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, tuned = [1.0] * 5 + [0.0] * 15, [0.0] * 2 + [1.0] * 3 + [1.0] * 11 + [0.0] * 4
    found = asked(monkeypatch, tmp_path, told_of(base), told_of(tuned))
    assert (found["only_tuned"], found["only_base"], found["asked"], found["base"]) == (11, 2, 20, 0.25)
    assert found["p_value"] == pytest.approx(sign_test(11, 2)) and found["lm_eval"]["tuned"] == {"acc,none": 0.7}
    turned = asked(monkeypatch, tmp_path, told_of(base, better=False), told_of(tuned, better=False))
    assert (turned["only_tuned"], turned["only_base"]) == (2, 11)


def test_a_figure_of_the_whole_set_has_no_paired_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = told_of([0.0, 1.0], key="word_perplexity,none")
    found = asked(monkeypatch, tmp_path, one, one)
    assert found["metric"] is None and found["asked"] == 2 and paired_tests({"tasks": [found]}) == {}


def test_other_questions_are_not_paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop, match="other questions of words"):
        asked(monkeypatch, tmp_path, told_of([1.0]), told_of([1.0], hashes="x"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--suite-limit", "3"], "are for --suite"),
        (["--suite", " , "], "are for --suite"),
        (["--suite", "x", "--suite-path", "nowhere"], "is not a folder"),
        (["--suite", "x", "--suite-limit", "0"], "counts from 1"),
    ],
)
def test_bad_input_is_answered_with_a_sentence(
    given: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert main(["verify", str(tmp_path), *given]) == 2
    assert told in capsys.readouterr().err


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Stop, match="lm_eval is not installed") as stop:
        read_suite("arc_easy", None, None, False)
    assert "'.[suite]'" in stop.value.hint and stop.value.code == 2


def test_questions_go_through_the_template_that_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both models are asked as the tuned one was taught, and not as the base's own template has it."""
    given = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|im_end|>{% endfor %}"
    asked_by = []
    monkeypatch.setattr(compare, "ask_suite", lambda *of: asked_by.append(of[-1]))
    request = SimpleNamespace(suite=Suite(("words",), None, None, True), say=print, env={})
    own = codec_with(tmp_path / "own", SHAPES["plain"])
    for codec in (own, replace(own, given=given, template=load_template(own.folder, given)), codec_with(tmp_path / "none", None)):
        compare._suite(request, codec, [], tmp_path, None)  # type: ignore[arg-type]
    assert asked_by[:2] == [None, given] and "### Instruction" in asked_by[2]

    templates = []
    parts = ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface")
    lm_eval, models, huggingface = (ModuleType(name) for name in parts)
    lm_eval.simple_evaluate, lm_eval.__version__ = lambda **_: {}, "0"  # type: ignore[attr-defined]
    huggingface.HFLM = lambda pretrained, tokenizer, batch_size: templates.append(tokenizer.chat_template)  # type: ignore[attr-defined]
    for name, module in zip(parts, (lm_eval, models, huggingface), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(job, "load_plain", lambda *_: None)
    for template in (None, given):
        facts = {"suite": [], "limit": None, "chat": True, "template": template}
        job._run_tasks({"model": str(EMBEDDED["tiny"]), "adapter": None}, facts, None, [], ())  # type: ignore[arg-type]
    assert templates[1] == given != templates[0]


@pytest.mark.long
def test_lm_eval_itself_asks_both_models(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    adapter = make_adapter(EMBEDDED["tiny"], tmp_path / "adapter", size=0.3)
    rows = write_rows(tmp_path / "rows.jsonl", make_rows(6))
    command = ["verify", adapter, "--rows", rows, "--generate", 0, "--suite-path", make_suite(tmp_path / "suite"), "--json"]
    done = holdfast(*command, "--suite", "local_words")
    assert done.returncode in (0, 1), done.stderr
    (task,) = json.loads(done.stdout)["suite"]["tasks"]
    assert task["asked"] == 12 and task["metric"] == "acc,none"
    for name in ("base", "tuned"):
        assert task[name] == pytest.approx(task["lm_eval"][name]["acc,none"]), "lm-eval's own figure of the same samples"
    done = holdfast(*command, "--suite", "no_such_task")
    assert done.returncode == 2 and "no such task" in done.stderr and "Traceback" not in done.stderr
    done = holdfast(*command, "--suite", "arc_easy", env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    assert done.returncode == 1 and "fetched from the hub" in done.stderr and "Traceback" not in done.stderr
