"""The doctor: what it says of recorded machines, that nothing makes it fall over, and the stories this project began with."""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from conftest import holdfast, make_rows, settings_with, write_rows
from holdfast.base.files import Json
from holdfast.base_model.folder import EMBEDDED, ModelFacts, read_model
from holdfast.base_model.types import causal_types
from holdfast.book.kinds.check import Case
from holdfast.book.knowledge import has_fused_attention
from holdfast.checkup.checkup import DoctorView
from holdfast.checkup.contrast import contrast
from holdfast.checkup.environment import as_file, confirmed, profile
from holdfast.checkup.examine import examine, verdict
from holdfast.cli.commands.doctor import judge
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.machine.machine_file import read, training_devices
from holdfast.planning.plan import make_plan, quick_plan
from holdfast.planning.planning import planner
from holdfast.planning.precision import choose_precision
from holdfast.planning.ranks import devices_for
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Params
from holdfast.run.timeline import Entry, add_entry
from holdfast.run.types import Finding
from holdfast.supervision.launch import trainer_launch
from holdfast.supervision.preparation.foresee import foresee
from support.recorded import AMD, MACHINES, Row, machine


@pytest.mark.parametrize("row", MACHINES, ids=[row[0] for row in MACHINES])
def test_a_recorded_machine_gets_its_findings_and_its_verdict(row: Row) -> None:
    _, facts, expected, serious, remarks, environment = row
    findings = examine(facts)
    assert {finding.id for finding in findings if finding.severity != "info"} == serious
    assert remarks <= {finding.id for finding in findings}
    assert verdict(findings) == expected
    assert {advice.name: advice.value for advice in confirmed(facts)} == environment


def test_the_table_covers_every_family() -> None:
    seen = {gpu["arch"] for row in MACHINES for gpu in row[1].get("gpus") or []}
    amd = {"gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151"}
    assert amd | {"gfx1200", "gfx1201", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} <= seen
    assert len(MACHINES) >= 60
    assert {row[2] for row in MACHINES} == {"ready", "risky", "blocked"}


def test_every_serious_finding_has_a_way_out_and_a_source() -> None:
    for _, facts, *_ in MACHINES:
        for finding in examine(facts):
            assert finding.source.startswith("http"), finding
            assert finding.fix or finding.severity == "info", finding


def test_nobody_is_told_to_replace_torch_blindly_on_amd() -> None:
    """A fix that installs torch names the wheels; anything else is installed without its dependencies, which would pull torch in."""
    for name, facts, *_ in AMD:
        for finding in examine(facts):
            assert "pip install torch" not in finding.fix, name
            assert "pip install -U torch" not in finding.fix, name
            if "install torch" in finding.fix or "install a torch" in finding.fix:
                assert "download.pytorch.org/whl/rocm" in finding.fix or "train on the CPU" in finding.fix, finding


WRONG = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=12),
    st.lists(st.one_of(st.none(), st.text(max_size=4), st.integers()), max_size=3),
    st.dictionaries(st.text(max_size=6), st.one_of(st.none(), st.text(max_size=4), st.integers()), max_size=3),
    st.sampled_from(
        ["999999999999.1+rocm9999", "2.5.1+rocm", "+cu", "2.9.1+cu1", "gfx", "sm_", "sm_99999999", "0x", "11.0.0", "..", "1.2.3.4.5.6.7"]
    ),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, entry in entries:
        yield (*path, name)
        yield from places(entry, (*path, name))


@st.composite
def mutations(draw: st.DrawFn) -> dict[str, Any]:
    """A recorded machine with some keys gone and some values replaced by anything."""
    facts = copy.deepcopy(draw(st.sampled_from(MACHINES))[1])
    for _ in range(draw(st.integers(1, 4))):
        spots = list(places(facts))
        if not spots:
            break
        *way, last = draw(st.sampled_from(spots))
        target: Any = facts
        for name in way:
            target = target[name]
        if draw(st.booleans()):
            del target[last]
        else:
            target[last] = draw(WRONG)
    return facts


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutations())
def test_no_mutation_makes_a_check_fall_over(facts: dict[str, Any]) -> None:
    findings = examine(facts)
    assert not [finding for finding in findings if "please report" in finding.fix]
    assert verdict(findings) in ("ready", "risky", "blocked")
    as_file(profile(facts), "title")
    training_devices(facts)
    contrast(facts, {})


def test_a_check_that_crashes_is_a_finding_and_never_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        id = "broken"

        def findings(self, case: object) -> list[Finding]:
            raise ZeroDivisionError("by zero")

    monkeypatch.setattr("holdfast.checkup.examine.cards", lambda shelf: {"broken": Broken()})
    findings = examine({})
    assert [finding.id for finding in findings] == ["broken", "broken"]
    assert "ZeroDivisionError: by zero" in findings[0].message
    assert verdict(findings) == "risky"


def told(facts: dict[str, Any], name: str) -> Finding:
    return next(finding for finding in examine(facts) if finding.id == name)


def test_story_the_7900_was_said_to_need_rocm_6_3() -> None:
    """torch 2.5.1+rocm6.2 on gfx1100: the popular cause is none; a warning and a fallback are not a fault."""
    facts = machine("2.5.1+rocm6.2", "gfx1100", env={"HSA_FORCE_FINE_GRAIN_PCIE": "1", "GPU_MAX_HW_QUEUES": "4"})
    assert verdict(examine(facts)) == "ready"
    assert "harmless" in told(facts, "hipblaslt-fallback").message
    assert told(facts, "hsa-force-fine-grain-pcie").standing == told(facts, "gpu-max-hw-queues").standing == "refuted"


def test_story_the_mi50_and_its_three_wheels() -> None:
    """2.4.1+rocm6.0 and 2.5.1+rocm6.2 both have its kernels, 2.9.1+rocm7.1 lists it and has none."""
    newest = told(machine("2.9.1+rocm7.1", "gfx906"), "blas-kernels")
    assert newest.severity == "block"
    assert "rocm6.3" in newest.fix
    listed = machine("2.9.1+rocm7.1", "gfx906")
    listed["torch"]["arch_list"] = ["gfx906", "gfx1100"]
    assert told(listed, "blas-kernels").severity == "block", "being in torch's list is not enough"
    middle = told(machine("2.5.1+rocm6.2", "gfx906"), "vega20")
    assert (middle.severity, middle.standing) == ("info", "reported")
    assert "dmesg" in middle.fix


def test_story_rocm_7_11_on_a_7_12_system() -> None:
    finding = told(machine("2.10.0+rocm7.11", "gfx1151", rocm={"version": "7.12.0"}), "rocm-differs")
    assert finding.severity == "info"
    assert "no fault in itself" in finding.message


def test_story_torchtune_and_torch_int1() -> None:
    facts = machine("2.5.1+rocm6.2", "gfx1100", packages={"torchtune": "0.6.1", "torchao": "0.15.0"})
    finding = told(facts, "torchao-int1")
    assert finding.severity == "block"
    assert "this keeps your torch" in finding.fix
    assert "torchao-int1" not in {finding.id for finding in examine(machine("2.6.0+rocm6.2.4", "gfx1100", packages={"torchao": "0.15.0"}))}


def test_story_the_override_on_an_mi50() -> None:
    finding = told(machine("2.9.1+rocm6.3", "gfx906", env={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}), "gfx-override")
    assert finding.severity == "block"
    assert finding.fix.startswith("unset HSA_OVERRIDE_GFX_VERSION")


@pytest.mark.parametrize(
    ("torch", "arch", "claimed", "packages"),
    [
        ("2.9.1+rocm6.4", "gfx1100", "10.3.0", {}),  # no fused attention for gfx1030
        ("2.9.1+rocm6.4", "gfx1100", "9.0.6", {"bitsandbytes": "0.49.1"}),  # no kernels for gfx906
        ("2.13.0+rocm7.2", "gfx1100", "9.0.0", {"triton": "3.7.0"}),  # does not compile for gfx900
        ("2.9.1+rocm6.4", "gfx1030", "9.4.2", {}),
    ],
)
def test_what_follows_from_an_override_that_blocks_is_no_second_finding(
    torch: str, arch: str, claimed: str, packages: dict[str, str]
) -> None:
    plain = {finding.id for finding in examine(machine(torch, arch, packages=packages))}
    found = {finding.id for finding in examine(machine(torch, arch, packages=packages, env={"HSA_OVERRIDE_GFX_VERSION": claimed}))}
    assert found - plain == {"gfx-override"}


def test_story_python_3_13_without_a_wheel() -> None:
    found = machine("2.5.1+rocm6.2", "gfx1100", python="3.13.1")
    assert "3.12" in told(found, "python-wheel").message
    missing = machine(None, "gfx1100", python="3.13.1")
    finding = told(missing, "torch-import")
    assert "Python 3.13.1" in finding.message
    assert "download.pytorch.org/whl/rocm" in finding.fix


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.9.1+cu128"])
def test_a_variable_without_a_reader_is_told_as_that(torch: str) -> None:
    finding = told(machine(torch, env={"HSA_DISABLE_CACHE": "1"}), "hsa-disable-cache")
    assert finding.severity == "info"
    assert "no effect" in finding.message


@pytest.mark.parametrize(
    ("torch", "arch", "driver", "wheel"),
    [
        ("2.13.0+cu130", "sm_80", "535.183.01", "torch 2.13 of https://download.pytorch.org/whl/cu126"),
        ("2.9.1+cu128", "sm_80", "470.256.02", "torch 2.7 of https://download.pytorch.org/whl/cu118"),
        ("2.13.0+cu130", "sm_120", "575.57.08", "torch 2.11 of https://download.pytorch.org/whl/cu128"),
    ],
)
def test_an_old_driver_is_shown_the_newest_wheel_that_it_serves_and_the_card_runs(torch: str, arch: str, driver: str, wheel: str) -> None:
    assert wheel in told(machine(torch, arch, cuda={"driver": driver}), "nvidia-driver").fix


@pytest.mark.parametrize(
    ("torch", "arch", "installed", "way_out"),
    [
        ("2.9.1+rocm6.4", "gfx1030", "0.49.2", "bitsandbytes>=0.50.2,<0.50.3"),  # 0.50.0 has it for ROCm 7.14 alone
        ("2.14.0+rocm7.14", "gfx1201", "0.49.2", "bitsandbytes>=0.50.2,<0.50.3"),
        ("2.9.1+rocm6.3", "gfx906", "0.50.2", "build it from source for gfx906"),
        ("2.5.1+cu124", "sm_52", "0.49.2", "bitsandbytes==0.47"),  # the last with Maxwell
        ("2.13.0+cu132", "sm_89", "0.48.2", "bitsandbytes>=0.50,<0.50.3"),
    ],
)
def test_bitsandbytes_without_kernels_is_told_with_a_version_that_has_them(torch: str, arch: str, installed: str, way_out: str) -> None:
    facts = machine(torch, "gfx1030" if arch.startswith("gfx") else "sm_50", packages={"bitsandbytes": installed})
    facts["gpus"][0]["arch"] = arch
    finding = told(facts, "bitsandbytes-kernels")
    assert way_out in finding.fix, finding


def of_run(facts: Json, check: str, **train: Any) -> Finding:
    """What a check tells of a run on the machine."""
    config = Config.model_validate({"model": "m", "data": {"files": ["f"]}, "train": train})
    (found,) = (finding for finding in examine(facts, config) if finding.id == check)
    return found


@pytest.mark.parametrize(
    ("arch", "train", "fix"),
    [
        ("sm_75", {}, "train.precision=auto takes fp16"),
        ("sm_70", {"precision": "bf16"}, "train.precision=auto, which takes fp16"),
        ("gfx1030", {}, "train.precision=auto takes fp16"),
        ("sm_75", {"fsdp": True, "ranks": 2}, "train.precision=auto takes fp32"),
        ("sm_61", {}, "train.precision=auto takes fp32"),
        ("sm_61", {"precision": "bf16"}, "train.precision=fp32"),
    ],
)
def test_what_a_card_without_bf16_is_trained_in_is_what_the_plan_takes(arch: str, train: dict[str, Any], fix: str) -> None:
    facts = {"gpus": [{"arch": arch, "memory_bytes": 16 << 30}]}
    assert fix in of_run(facts, "bf16-hardware", **train).fix
    if train.get("precision", "auto") == "auto":
        config = Config.model_validate({"model": "m", "data": {"files": ["f"]}, "train": train})
        model = ModelFacts(Path("-"), {}, {"layers.0.q_proj.weight": (4096, 4096)}, 0, "BF16")
        assert choose_precision(config, model, facts)[0] in fix


@pytest.mark.parametrize(
    ("train", "cards", "told_of"),
    [
        ({}, "AA", "one of 2; a run uses one GPU, the others stay idle"),
        ({"ranks": "auto"}, "AA", "2 of 2 (train.ranks: auto)"),
        ({"ranks": "auto"}, "ABA", "2 of 3 (train.ranks: auto); the others stay idle"),
        ({"ranks": "auto"}, "AAA", "2 of 3 (train.ranks: auto); the others stay idle"),
        ({"ranks": "auto", "reduction_parts": "off"}, "AAA", "3 of 3 (train.ranks: auto)"),
        ({"ranks": 2}, "AAAA", "2 of 4 (train.ranks: 2); the others stay idle"),
    ],
)
def test_the_cards_that_a_run_uses_are_those_it_is_started_on(train: dict[str, Any], cards: str, told_of: str) -> None:
    kinds = {"A": {"arch": "sm_86", "memory_bytes": 24 << 30}, "B": {"arch": "sm_86", "memory_bytes": 12 << 30}}
    gpus = [kinds[kind] for kind in cards]
    facts = {"gpus": gpus, "torch": {"version": "2.9.1+cu128", "devices": gpus}}
    assert of_run(facts, "device", **train).message.endswith(f", {told_of}")
    used = len(devices_for(Config.model_validate({"model": "m", "data": {"files": ["f"]}, "train": train}).train, facts))
    assert told_of.startswith(f"{used} of" if train else "one of")


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        ("0,1", 2),
        ("1", 1),
        ("0,-1,1", 1),  # CUDA: only the devices before the invalid index are visible
        ("0,7,1", 1),
        ("-1", 0),
        ("", 0),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 2),  # whose this is nobody knows here
    ],
)
def test_the_cards_that_a_variable_leaves_are_those_before_a_wrong_number(chosen: str, seen: int) -> None:
    case = Case(read({"torch": {"version": "2.9.1+cu128"}, "gpus": [{"arch": "sm_90"}] * 2, "env": {"CUDA_VISIBLE_DEVICES": chosen}}))
    assert len(case.visible) == seen


def test_a_node_of_its_own_override_counts_as_one() -> None:
    """What the doctor advises where GPUs of several kinds are in one machine must not be told as missing code afterwards."""
    facts = machine("2.9.1+rocm6.4", "gfx1031", env={"HSA_OVERRIDE_GFX_VERSION_1": "10.3.0"})
    assert "gpu-arch" not in {finding.id for finding in examine(facts)}


def test_the_users_own_variables_win_over_the_profile() -> None:
    facts = machine("2.9.1+rocm6.4", "gfx1036", "gfx1100")
    assert [advice.name for advice in confirmed(facts)] == ["ROCR_VISIBLE_DEVICES"]
    assert not confirmed(facts | {"env": {"ROCR_VISIBLE_DEVICES": "0,1"}})
    assert not confirmed(facts | {"env": {"HIP_VISIBLE_DEVICES": "1"}})


def test_a_saved_profile_is_one_a_shell_reads(tmp_path: Path) -> None:
    facts = machine("2.9.1+rocm6.4", "gfx1036", "gfx1101", "gfx1101")
    file = tmp_path / "machine.env"
    file.write_text(as_file(profile(facts), "two cards"))
    done = subprocess.run(
        ["bash", "-euc", f"set -a; source {file}; env"], capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert seen["ROCR_VISIBLE_DEVICES"] == "1,2"
    assert "NCCL_P2P_DISABLE" not in seen, "what is only reported is not set"
    assert "# NCCL_P2P_DISABLE=1  # reported: " in file.read_text()


def test_two_machines_are_compared_by_fact_and_by_finding(tmp_path: Path) -> None:
    host, box = machine("2.9.1+rocm6.4", "gfx1100"), machine("2.9.1+rocm6.4", "gfx1100", container=True, shm_bytes=64 << 20)
    for name, facts in (("host", host), ("box", {"machine": box})):
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    done = holdfast("doctor", "--compare", tmp_path / "host.json", tmp_path / "box.json", "--json")
    answer = json.loads(done.stdout)
    assert {entry["key"] for entry in answer["differences"]} == {"os.container", "shm_bytes"}
    assert [finding["id"] for finding in answer["findings"]["only_b"]] == ["shared-memory"]
    assert answer["verdicts"] == {"a": "ready", "b": "risky"}


def test_what_was_measured_on_both_is_set_side_by_side(tmp_path: Path) -> None:
    def measured(copied: object, product: object) -> dict[str, Any]:
        speed = {"outcome": "ok", "copy_bytes_per_second": copied, "flops_per_second": {"float32": product}}
        return machine("2.9.1+rocm6.4", "gfx1100", probes={"speed": speed})

    for name, facts in (("host", measured(200, 4e12)), ("box", measured(190, 3e12)), ("old", measured(None, "fast"))):
        (tmp_path / f"{name}.json").write_text(json.dumps(facts))
    done = holdfast("doctor", "--compare", tmp_path / "host.json", tmp_path / "box.json", "--json")
    assert json.loads(done.stdout)["rates"] == [
        {"what": "speed.copy_bytes_per_second", "a": 200, "b": 190, "b_over_a": 0.95},
        {"what": "speed.flops_per_second.float32", "a": 4e12, "b": 3e12, "b_over_a": 0.75},
    ]
    told = holdfast("doctor", "--compare", tmp_path / "host.json", tmp_path / "box.json").stdout
    assert "speed.flops_per_second.float32: the second has 0.75 times the speed of the first" in told
    assert json.loads(holdfast("doctor", "--compare", tmp_path / "host.json", tmp_path / "old.json", "--json").stdout)["rates"] == []


@pytest.mark.parametrize(("facts", "code", "judged"), [(machine("2.13.0+cpu"), 0, "ready"), (machine(None), 1, "blocked")])
def test_a_machine_file_alone_is_judged(tmp_path: Path, facts: dict[str, Any], code: int, judged: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(facts))
    done = holdfast("doctor", "--machine", file, "--json", env={"ROCM_ALLOW_HIDDEN_KERNEL_FLAGS": "1"})
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict"], answer["machine"]) == (code, judged, facts)
    assert not [finding for finding in answer["findings"] if finding["id"] == "rocm-allow-hidden-kernel-flags"], "nothing real is looked at"
    assert all(set(finding) >= {"id", "severity", "message", "fix", "source"} for finding in answer["findings"])


def test_a_report_is_one_file_without_names_and_secrets_that_any_doctor_judges(tmp_path: Path) -> None:
    facts = machine("2.11.0+rocm7.2", "gfx942", probes={"matmul": {"outcome": "wrong", "detail": "off by 3 in /home/annabelle/x"}})
    facts["env"] = {"LD_LIBRARY_PATH": "/home/annabelle/lib", "ROCM_ODD": "hf_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7"}
    (tmp_path / "machine.json").write_text(json.dumps(facts))
    report, secret = tmp_path / "made" / "report.md", "a-token-of-mine-42"
    env = {"MY_API_TOKEN": secret, "SUDO_USER": "annabelle"}
    done = holdfast("doctor", "--machine", tmp_path / "machine.json", "--report", report, env=env)
    text = report.read_text()
    assert done.returncode == 1 and "it, then attach it to an issue" in done.stdout
    assert not [word for word in ("annabelle", "hf_a1B2", secret, str(Path.home())) if word in text]
    for told in ("Verdict: **blocked**", "matmul: wrong", "* precision: fp32", "7B shape, r=16", "gfx942", "probe-results"):
        assert told in text
    again = json.loads(holdfast("doctor", "--machine", report, "--json").stdout)
    assert (again["verdict"], again["machine"]["gpus"]) == ("blocked", facts["gpus"])


@pytest.mark.parametrize("content", ["", "[1]", "{", "null", '{"machine": 3}'])
def test_rubbish_in_place_of_a_machine_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(content)
    done = holdfast("doctor", "--machine", file)
    assert done.returncode == 2
    assert "doctor --json" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_doctor_speaks_plainly_without_a_terminal() -> None:
    done = holdfast("doctor", "--no-probe", env={"ROCM_ALLOW_HIDDEN_KERNEL_FLAGS": "1"})
    assert done.returncode == 0, done.stderr
    assert "warn   rocm-allow-hidden-kernel-flags: " in done.stdout
    assert "       -> unset ROCM_ALLOW_HIDDEN_KERNEL_FLAGS" in done.stdout
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("look at the warnings first\nnext: holdfast init --model M --data rows.jsonl --out my-run.yaml\n")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_remedy_is_cut_at_any_width_of_a_terminal(width: int) -> None:
    voice = DoctorView(to_stderr=False)
    voice.console = Console(file=io.StringIO(), force_terminal=True, width=width, highlight=False, soft_wrap=True, color_system=None)
    voice.wide = True
    fix, source = f"pip install {'a-package ' * 30}to the end", f"https://example.org/{'a/' * 120}end"
    voice.findings([Finding("one", "warn", "a fact", fix, source), Finding("two", "block", "another", f"{fix} [train]", source)])
    told = voice.console.file.getvalue()  # type: ignore[attr-defined]
    assert told.count(f"       -> {fix}") == 2 and told.count(f"       {source}") == 2 and "[train]" in told


@pytest.mark.parametrize(
    ("env", "told_of"),
    [
        ({}, "set by `holdfast train` itself"),
        ({"TORCHDYNAMO_DISABLE": "1"}, "set already"),
        ({"TORCHDYNAMO_DISABLE": "0"}, "yours is '0' and stays: unset TORCHDYNAMO_DISABLE"),
    ],
)
def test_a_variable_of_the_users_own_is_not_told_as_set_by_a_run(env: dict[str, str], told_of: str) -> None:
    facts = machine("2.9.1+rocm6.3", "gfx906", env=env)
    advised = [advice for advice in profile(facts) if advice.name == "TORCHDYNAMO_DISABLE"]
    voice = DoctorView(to_stderr=False)
    voice.console = Console(file=io.StringIO(), width=300, color_system=None)
    voice.environment(advised, facts.get("env", {}))
    assert told_of in voice.console.file.getvalue()  # type: ignore[attr-defined]
    assert bool(confirmed(facts)) == ("holdfast train" in told_of)


def test_a_trainer_gets_the_confirmed_part_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = machine("2.9.1+rocm6.4", "gfx1036", "gfx1101", "gfx1101")
    (tmp_path / "machine.json").write_text(json.dumps(facts))
    add_entry(tmp_path / "timeline.jsonl", Entry(1, settings_with().model_dump(), "test"))
    for name in list(os.environ):
        if "VISIBLE_DEVICES" in name:
            monkeypatch.delenv(name)
    env = trainer_launch(RunFolder(tmp_path)).env
    assert env["ROCR_VISIBLE_DEVICES"] == "1,2"
    assert not {"NCCL_P2P_DISABLE", "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"} & set(env), "what is only reported is left to the user"
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    assert "ROCR_VISIBLE_DEVICES" not in trainer_launch(RunFolder(tmp_path)).env
    add_entry(tmp_path / "timeline.jsonl", Entry(5, {"env": {"HSA_ENABLE_SDMA": "0"}, "attention": "eager"}, "seen to help"))
    launch = trainer_launch(RunFolder(tmp_path))
    assert launch.env["HSA_ENABLE_SDMA"] == "0", "the process begins before step 5, but is the one that comes to it"
    assert launch.settings.attention == "eager"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """A config for the model that ships with the package."""
    rows = write_rows(tmp_path / "rows.jsonl", make_rows(30))
    (tmp_path / "run.yaml").write_text(json.dumps({"model": "tiny", "data": {"files": [str(rows)]}, "train": {"max_tokens": 128}}))
    return tmp_path / "run.yaml"


def test_a_run_is_judged_by_its_model_its_rows_its_memory_and_its_disk(config_file: Path) -> None:
    config = load_config(config_file, [])
    seen = foresee(config, {"memory_bytes": 8 << 30})
    assert seen.plan is not None and seen.plan.fits is True
    assert [(finding.id, finding.severity) for finding in seen.findings] == [("plan", "info")]
    assert "rows of 128 tokens" in seen.findings[0].message
    small = {"memory_bytes": 256 << 20, "disk_free_bytes": 600 << 20}
    tight = foresee(config, small).plan
    assert tight is not None
    assert "memory-plan" in {finding.id for finding in examine(small, config, tight)}
    huge = tight.model_copy(update={"params": Params(total=1 << 30, trainable=1 << 28)})
    told = {finding.id: finding.severity for finding in examine(small, config, huge)}
    assert told["disk-space"] == "block", "five checkpoints of 3 GiB on 600 MiB"
    (nearly_full,) = (finding for finding in examine(small | {"disk_free_bytes": 100 << 20}, config, tight) if finding.id == "disk-space")
    assert nearly_full.severity == "warn" and "100.0 MiB free, enough if nothing else fills it:" in nearly_full.message
    assert "disk-space" not in {finding.id for finding in examine(small, config, tight)}


def test_a_config_is_judged_with_its_overrides_as_train_takes_them(config_file: Path, tmp_path: Path) -> None:
    said = json.loads(holdfast("doctor", config_file, "--no-probe", "--json", "adapter.targets=[nothing]").stdout)
    assert any(found["severity"] == "block" and "names no module" in found["message"] for found in said["findings"])
    wrong = holdfast("doctor", config_file, "train.learning_rat=1")
    assert wrong.returncode == 2 and "train.learning_rat" in wrong.stderr
    alone = holdfast("doctor", "train.lr=1e-4")
    assert alone.returncode == 2 and "no config to change" in alone.stderr


@pytest.mark.parametrize(
    ("content", "severity", "told"),
    [
        (b"{torn\n" * 30, "block", "cannot be trained on"),
        (b"", "block", "no row"),
        (b'{"foo": 1}\n' * 30, "block", "20 of the first 20 rows"),
        (b'{"foo": 1}\n', "block", "1 of the first 1 rows"),
        (b'{"messages": [{"role": "user", "content": [{"type": "image"}]}]}\n', "block", "a part that is not text (image)"),
        (b'{torn\n{"prompt": "a", "completion": "b"}\n', "warn", "1 of the first 2"),
    ],
)
def test_rows_that_are_none_are_found_before_the_run(config_file: Path, content: bytes, severity: str, told: str) -> None:
    config = load_config(config_file, [])
    Path(config.data.files[0]).write_bytes(content)
    found = [finding for finding in foresee(config, {}).findings if finding.id == "data-files"]
    assert [finding.severity for finding in found] == [severity]
    assert told in found[0].message and "holdfast data check" in found[0].fix


def test_rows_of_another_objective_are_shown_with_it(config_file: Path) -> None:
    """The command that was named kept each row."""
    config = load_config(config_file, ["train.objective=dpo"])
    fixes = [finding.fix for finding in foresee(config, {}).findings if finding.id == "data-files"]
    assert fixes and "--objective dpo" in fixes[0]


def _pairs(count: int, **more: object) -> list[dict[str, object]]:
    return [{"prompt": f"question {number} of many", "completion": f"answer {number}", **more} for number in range(count)]


@pytest.mark.parametrize(
    ("held", "overrides", "severity", "told"),
    [
        (_pairs(3), [], "warn", "of 3 held-out rows 3 stand in training word for word"),
        ([{"prompt": "question 1 of many", "completion": "no"}], [], "warn", "0 stand in training word for word, 1 with their prompt"),
        ([], ["data.held_out=0", "evaluate.every=3"], "block", "no row is held out to evaluate on"),
        ([], ["data.rows_per_epoch=500"], "block", "data.rows_per_epoch is 500, but there are"),
        ([], ["data.row_weight=weight"], "block", "no row has a weight in a field 'weight'"),
    ],
)
def test_what_train_refuses_or_warns_of_in_the_rows_is_in_the_doctors_view(
    config_file: Path, held: list[dict[str, object]], overrides: list[str], severity: str, told: str
) -> None:
    write_rows(config_file.parent / "rows.jsonl", _pairs(40))
    if held:
        overrides = [f"data.held_out_files={write_rows(config_file.parent / 'held.jsonl', held)}", *overrides]
    found = [finding for finding in foresee(load_config(config_file, overrides), {}).findings if finding.severity != "info"]
    assert [(finding.id, finding.severity) for finding in found] == [("rows", severity)]
    assert told in found[0].message and "\n" not in found[0].message and "/tmp/holdfast-doctor" not in found[0].fix


def test_rows_too_many_to_check_are_told_as_that(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.supervision.preparation.foresee._ALL_ROWS", 10)
    (told,) = [finding for finding in foresee(load_config(config_file, []), {}).findings if finding.id == "rows"]
    assert told.severity == "info" and "train checks all" in told.message and "holdfast data check" in told.fix


def test_rows_of_a_split_that_is_left_out_say_nothing_of_those_that_are_trained(config_file: Path) -> None:
    config = load_config(config_file, [])
    rows = [{"prompt": f"a{number}", "completion": "b"} for number in range(60)]
    Path(config.data.files[0]).write_text(json.dumps({"test": rows[:40], "train": rows[40:]}))
    assert not [finding for finding in foresee(config, {}).findings if finding.id == "data-files"]


def test_a_model_folder_that_cannot_be_read_blocks_here_and_not_on_another_machine(config_file: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{torn")
    config_file.write_text(config_file.read_text().replace('"tiny"', '"./model"'))
    here = foresee(load_config(config_file, []), {})
    assert here.plan is None and [(finding.id, finding.severity) for finding in here.findings] == [("model-folder", "block")]
    (tmp_path / "machine.json").write_text("{}")
    done = holdfast("doctor", config_file, "--machine", tmp_path / "machine.json", "--json", cwd=tmp_path)
    told = {finding["id"]: finding["severity"] for finding in json.loads(done.stdout)["findings"]}
    assert (done.returncode, told["model-folder"], json.loads(done.stdout)["verdict"]) == (0, "warn", "risky"), done.stderr


def test_a_folder_without_weights_is_not_called_ready_on_a_recorded_machine(config_file: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(EMBEDDED["tiny"], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    config_file.write_text(config_file.read_text().replace('"tiny"', '"./model"'))
    config = load_config(config_file, [])
    here, elsewhere = (judge(SOUND, config, elsewhere=is_elsewhere) for is_elsewhere in (False, True))
    assert verdict(here) == "blocked" and verdict(elsewhere) == "risky"
    (told,) = (finding for finding in elsewhere if finding.id == "model-folder")
    assert "no weights" in told.message and "what the run needs of the recorded machine is unknown" in told.message
    assert "holdfast plan CONFIG --machine FILE" in told.fix


SOUND: Json = {
    "os": {"kernel": "6.8.0", "distro": "Ubuntu 24.04", "wsl": False, "container": False},
    "python": "3.12.3",
    "memory_bytes": 64 << 30,
    "shm_bytes": 32 << 30,
    "disk_free_bytes": 500 << 30,
    "torch": {"version": "2.9.1+cu128", "hip": None, "cuda": "12.8", "arch_list": ["sm_80", "sm_86", "sm_89", "sm_90"]},
    "cuda": {"driver": "580.65"},
    "gpus": [{"vendor": "nvidia", "arch": "sm_89", "name": "RTX 4090", "memory_bytes": 24 << 30, "integrated": False}],
    "packages": {"transformers": "5.23.0", "peft": "0.21.2", "bitsandbytes": "0.50.2", "triton": "3.5.1"},
}


@pytest.mark.parametrize("asked", ["train.frozen=nf4", "train.frozen=int8", "train.optimizer=adamw8bit"])
def test_what_needs_bitsandbytes_is_not_ready_without_it_and_without_its_code_for_the_card(config_file: Path, asked: str) -> None:
    config, plain = load_config(config_file, [asked]), load_config(config_file, [])
    packages, old = SOUND["packages"], [SOUND["gpus"][0] | {"arch": "sm_61"}]
    missing = SOUND | {"packages": packages | {"bitsandbytes": None}}
    torch = SOUND["torch"] | {"version": "2.9.1+cu126", "cuda": "12.6", "arch_list": ["sm_50", "sm_60", "sm_90"]}
    no_code = SOUND | {"torch": torch, "gpus": [old[0] | {"arch": "sm_52"}]}
    assert verdict(judge(SOUND, config, True)) == verdict(judge(SOUND, plain, True)) == "ready"
    (told,) = (finding for finding in judge(missing, config, True) if finding.severity == "block")
    assert asked.replace("=", ": ") in told.message and "bitsandbytes, which is not installed" in told.message
    (told,) = (finding for finding in judge(no_code, config, True) if finding.severity == "block")
    assert told.id == "bitsandbytes-kernels" and "has no code for" in told.message
    built = no_code | {"probes": {"quantised": {"outcome": "ok"}}}
    assert verdict(judge(built, config, True)) == verdict(judge(no_code, plain, True)) == "risky", "tried and right; not asked for"
    wrong = SOUND | {"probes": {"quantised": {"outcome": "wrong", "detail": "4 bits"}}}
    assert (verdict(judge(wrong, config, True)), verdict(judge(wrong, plain, True))) == ("blocked", "risky")
    assert verdict(judge(missing, plain, True)) == "ready", "nothing asks for it"


def test_a_model_that_comes_in_four_bits_asks_for_bitsandbytes(config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "holdfast.supervision.preparation.foresee.as_it_comes",
        lambda config, _: config.model_copy(update={"train": config.train.model_copy(update={"frozen": "nf4"})}),
    )
    missing = SOUND | {"packages": SOUND["packages"] | {"bitsandbytes": None}}
    assert verdict(judge(missing, load_config(config_file, []), True)) == "blocked"


@pytest.mark.usefixtures("no_alternatives")
def test_doctor_and_plan_agree_on_what_fits(config_file: Path) -> None:
    config = load_config(config_file, [])
    sizes = [256 << 20, 512 << 20, 8 << 30]
    without_card = SOUND | {"gpus": [], "torch": {"version": "2.9.1+cpu", "hip": None, "cuda": None}}
    with planner(config, without_card) as work:
        fits = [work.plan(size, curve=False).plan.fits for size in sizes]
    verdicts = [verdict(judge(without_card | {"memory_bytes": size}, config, True)) for size in sizes]
    assert fits == [False, False, True] and verdicts == ["blocked", "risky", "ready"]


@pytest.mark.parametrize(("arch", "reserved"), [("sm_89", 0.25), ("gfx1201", 0.35)])
def test_a_card_is_judged_by_the_share_that_a_plan_leaves_to_others(config_file: Path, arch: str, reserved: float) -> None:
    config = load_config(config_file, [])
    amd = {"version": "2.9.1+rocm6.4", "hip": "6.4", "cuda": None}
    card, torch = (SOUND["gpus"][0] | {"arch": arch}, SOUND["torch"]) if arch.startswith("sm") else ({"arch": arch, "vendor": "amd"}, amd)
    machine = SOUND | {"gpus": [card], "torch": torch}
    least = make_plan(config, read_model("tiny"), machine, LENGTHS, has_fused_attention(machine), least=True).peak_bytes

    def said(times: float) -> bool | None:
        """What is said of a card that has so many times the least that is needed, beside what a plan leaves."""
        sized = machine | {"gpus": [card | {"memory_bytes": int(least * times / (1 - reserved))}]}
        return quick_plan(config, read_model("tiny"), sized, LENGTHS).fits

    assert [said(times) for times in (0.4, 1.0, 1.6)] == [False, None, True], "near the limit only a trace tells"


@pytest.mark.parametrize(("reserve", "fits"), [(None, True), ("0", True), ("1GiB", True), ("8000MiB", False), ("9GiB", False)])
@pytest.mark.usefixtures("no_alternatives")
def test_what_is_left_to_others_is_as_the_config_says_in_doctor_plan_and_train(config_file: Path, reserve: str | None, fits: bool) -> None:
    config = load_config(config_file, [f"train.memory_reserve={reserve}"] if reserve else [])
    machine = SOUND | {"gpus": [], "torch": {"version": "2.9.1+cpu", "hip": None, "cuda": None}, "memory_bytes": 8 << 30}
    with planner(config, machine) as work:
        traced = work.plan(8 << 30, curve=False).plan
    quick = quick_plan(config, read_model("tiny"), machine, LENGTHS)
    assert (traced.fits, quick.fits, make_plan(config, read_model("tiny"), machine, LENGTHS).fits) == (fits, fits, fits)
    assert (
        traced.reserve_bytes == quick.reserve_bytes == min(8 << 30, (8 << 30) // 5 if reserve is None else config.train.memory_reserve or 0)
    )
    findings = {finding.id: finding.message for finding in judge(machine, config, True)}
    assert ("train.memory_reserve" in findings.get("memory-plan", "")) == (not fits)


LENGTHS = {"max": 128, "mean": 64, "rows": 0, "step": 128 * 32}


@pytest.mark.parametrize(("kind", "severity"), [("qwen2", "info"), ("a_type_of_its_own", "block")])
def test_code_in_the_models_folder_is_told_and_blocks_only_where_nothing_else_computes_it(
    config_file: Path, tmp_path: Path, kind: str, severity: str
) -> None:
    folder = shutil.copytree(EMBEDDED["tiny"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    named = {"AutoModelForCausalLM": "modeling_mine.Mine"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": kind, "auto_map": named}))
    config_file.write_text(config_file.read_text().replace('"tiny"', '"./model"'))
    (told,) = (finding for finding in foresee(load_config(config_file, []), {}).findings if finding.id == "model-code")
    assert told.severity == severity and "modeling_mine.Mine" in told.message
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoTokenizer": ["mine.Tokenizer", None]}}))
    assert "model-code" not in {finding.id for finding in foresee(load_config(config_file, []), {}).findings}
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"auto_map": {"AutoTokenizer": [None, "mine.Fast"]}}))
    (told,) = (finding for finding in foresee(load_config(config_file, []), {}).findings if finding.id == "tokenizer-code")
    assert told.severity == "info" and "(mine.Fast), which holdfast does not run" in told.message
    (folder / "tokenizer.json").unlink()
    (told,) = (finding for finding in foresee(load_config(config_file, []), {}).findings if finding.id == "model-folder")
    assert told.severity == "block" and "its tokenizer is code of its own (mine.Fast)" in told.message


@pytest.mark.parametrize("kind", ["t5", "a_type_of_its_own", None])
def test_a_type_that_transformers_has_no_causal_model_of_blocks(config_file: Path, tmp_path: Path, kind: str | None) -> None:
    folder = shutil.copytree(EMBEDDED["tiny"], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    config_file.write_text(config_file.read_text().replace('"tiny"', '"./model"'))
    (told,) = (finding for finding in foresee(load_config(config_file, []), {}).findings if finding.id == "model-type")
    assert told.severity == "block" and f"a model of type {kind!r}" in told.message


def test_a_target_among_others_that_no_layer_is_called_blocks(config_file: Path) -> None:
    """Training refuses such a list when the model is loaded, half a minute after its start."""
    mixed = load_config(config_file, ["adapter.targets=[q_proj, kproj, embed_tokens, layers.0.self_attn.v_proj]"])
    (told,) = [finding for finding in foresee(mixed, {}).findings if finding.id == "plan"]
    assert (told.severity, told.message) == ("block", "adapter.targets names kproj, and this model has no such layer")
    assert told.fix.startswith("kproj: did you mean k_proj?; it has down_proj")


def test_targets_that_the_model_does_not_have_block(config_file: Path) -> None:
    (told,) = foresee(load_config(config_file, ["adapter.targets=[q_projj]"]), {}).findings
    assert (told.id, told.severity) == ("plan", "block") and "names no module" in told.message and "q_proj, up_proj" in told.fix


def test_the_types_of_models_read_from_transformers_files_are_those_it_lists() -> None:
    modeling = pytest.importorskip("transformers.models.auto.modeling_auto")
    assert causal_types() == set(modeling.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
