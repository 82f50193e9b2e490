"""docs/reference/gpus.md says of each GPU what doctor and plan say of a machine with it, and names what is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_page import AMD, INTEGRATED, NVIDIA, PAGE, facts_of, written

from conftest import ROOT
from holdfast.machine.facts import has_bf16, has_fast_fp16
from holdfast.report.plan.paths import paths
from support.recorded import machine

ALL = {**NVIDIA, **AMD, **INTEGRATED}


def test_the_page_says_what_doctor_and_plan_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "python scripts/gpu_page.py"


def test_every_family_of_the_recorded_machines_is_on_the_page() -> None:
    assert {"sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} <= set(NVIDIA)
    assert {"gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"} <= set(AMD)
    assert set(INTEGRATED) == {"gfx1103", "gfx1150", "gfx1151"}


@pytest.mark.parametrize(("arch", "torch"), ALL.items())
def test_a_run_takes_the_precision_its_card_multiplies_and_never_more_memory_than_there_is(arch: str, torch: str) -> None:
    told = paths(facts_of(arch, torch))
    assert told["precision"] == ("bf16" if has_bf16(arch) else "fp16" if has_fast_fp16(arch) else "fp32")
    assert arch in told["device"]
    assert told["deterministic kernels"].startswith("no") or told["deterministic kernels"] == "yes"
    if told["precision"] == "fp32":
        assert "at once" not in told["attention"], "the variable-length kernel is for 16 bits"


def test_what_the_page_says_of_special_machines_is_what_a_run_does() -> None:
    assert "90%" in paths(facts_of("gfx1201", AMD["gfx1201"]))["memory limit"]
    assert paths(machine("2.13.0+cu130", "sm_90"))["memory limit"].startswith("none")
    shared = paths(facts_of("gfx1151", INTEGRATED["gfx1151"]))["memory limit"]
    assert "fail rather than freeze" in shared
    assert paths(machine("2.13.0+rocm7.2", "gfx1031"))["set for the trainer"] == "HSA_OVERRIDE_GFX_VERSION=10.3.0"
    hidden = paths(machine("2.13.0+rocm7.2", "gfx1036", "gfx1100"))
    assert "gfx1100" in hidden["device"] and "ROCR_VISIBLE_DEVICES=1" in hidden["set for the trainer"]
    assert paths(machine("2.9.1+cu128", "sm_89", "sm_89"))["cards"].startswith("the first of 2")
    assert paths(machine("2.13.0+cpu"))["device"] == "the CPU"


def test_every_file_and_stage_the_page_names_is_there() -> None:
    import confidence

    page = PAGE.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|benchmarks|scripts)/[\w./]+)", page):
        assert (ROOT / name).exists(), name
    table = page.partition("## What each path was proven by")[2].partition("\n## ")[0]
    named = {stage.strip() for line in table.splitlines()[4:] if line.startswith("|") for stage in line.split("|")[4].split(",")}
    assert named <= {stage["stage"] for stage in confidence.stages()}, named


def test_every_question_to_a_card_has_its_answer_beside_it_and_a_place_where_it_is_claimed() -> None:
    from confidence import HERE, judge, stages

    known = stages()
    assert len({stage["stage"] for stage in known}) == len(known)
    for stage in known:
        assert (HERE / "stages" / f"{stage['stage']}.py").exists(), stage["stage"]
        assert 0 < stage["minutes"] <= 9, "a stage has to fit into a call of nine minutes"
        assert len({question["id"] for question in stage["questions"]}) == len(stage["questions"])
        for question in stage["questions"]:
            assert question["asks"] and question["expects"] and question["claimed"]
            assert all((ROOT / page).exists() for page in question["claimed"]), question
            assert judge(question, {"value": None}) == "absent" and judge(question, None) == "unanswered"


@pytest.mark.parametrize(
    ("rule", "value", "verdict"),
    [
        ({"equals": True}, True, "passed"),
        ({"equals": 0}, 3, "failed"),
        ({"at_most": 1.0}, 0.9, "passed"),
        ({"at_least": 1}, 0, "failed"),
        ({"within": [1, 6]}, 7, "failed"),
        ({"one_of": ["ready", "risky"]}, "blocked", "failed"),
        (None, 17, "recorded"),
    ],
)
def test_an_answer_is_judged_by_the_rule_that_stood_there_before(rule: dict[str, object] | None, value: object, verdict: str) -> None:
    from confidence import judge

    assert judge({"rule": rule}, {"value": value}) == verdict


def test_a_stage_that_crashes_is_a_result_and_the_next_goes_on(tmp_path: Path) -> None:
    """`release` meets a torch that cannot be imported; `profile` is left for another call, because it does not fit."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "torch.py").write_text("raise ImportError('libcudart.so.13')")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "confidence.py"), "--out", str(tmp_path / "out")]
    command += ["--also", str(tmp_path / "home"), "--only", "release", "profile", "--minutes"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "broken")}
    done = subprocess.run([*command, "1.7"], capture_output=True, text=True, env=environment, check=False)
    assert "crashed: see logs/release.log" in done.stdout, done.stdout + done.stderr
    entries = [json.loads(line) for line in (tmp_path / "home" / "results.jsonl").read_text().splitlines()]
    assert (entries[0]["stage"], entries[0]["status"]) == ("release", "crashed")
    assert {answer["verdict"] for answer in entries[0]["answers"]} == {"unanswered"}
    assert "libcudart" in (tmp_path / "home" / "logs" / "release.log").read_text()
    again = subprocess.run([*command, "0.2"], capture_output=True, text=True, env=environment, check=False)
    assert "release: at most" not in again.stdout, "what has a result is not asked again"
    assert "| **release** |" in (tmp_path / "home" / "table.md").read_text()


def test_a_stage_that_does_not_fit_into_the_minutes_is_left_for_the_next_call(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu" / "confidence.py"), "--out", str(tmp_path), "--minutes", "0.2"]
    done = subprocess.run([*command, "--only", "profile"], capture_output=True, text=True, check=False)
    assert "profile: left for the next call" in done.stdout and not (tmp_path / "results.jsonl").exists()
