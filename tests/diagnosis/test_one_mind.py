"""The doctor and the diagnosis know the same things: a log and a machine are read together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main

FAULT = "step 12 loss 2.3\nMemory access fault by GPU node-1 (Agent handle: 0x55) on address (nil). Reason: Page not present.\nAborted\n"
ILLEGAL = "RuntimeError: HIP error: an illegal memory access was encountered\n"
INT1 = """Traceback (most recent call last):
  File "/x/train.py", line 3, in <module>
  File "/v/site-packages/torchao/quantization/quant_primitives.py", line 40, in <module>
AttributeError: module 'torch' has no attribute 'int1'
"""
NO_GPU = "Traceback (most recent call last):\nRuntimeError: No HIP GPUs are available\n"
READABLE = {"/dev/kfd": {"exists": True, "readable": True}, "/dev/dri/renderD128": {"exists": True, "readable": True}}


def machine(arch: str, torch: str, **more: Any) -> dict[str, Any]:
    rocm = torch.rpartition("rocm")[2]
    return {
        "os": {"kernel": "6.8.0-45-generic"},
        "torch": {"version": torch, "hip": rocm, "cuda": None},
        "gpus": [{"vendor": "amd", "arch": arch, "name": arch, "memory_bytes": 32 << 30, "integrated": False}],
        "devices": READABLE,
        "packages": {"transformers": "4.57.6", "peft": "0.18.1"},
        "env": {},
    } | more


def diagnosed(tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, facts: dict[str, Any]) -> dict[str, Any]:
    (tmp_path / "a.log").write_text(log)
    (tmp_path / "m.json").write_text(json.dumps(facts))
    assert main(["diagnose", str(tmp_path / "a.log"), "--machine", str(tmp_path / "m.json"), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("log", "facts", "cause", "fix"),
    [
        (FAULT, machine("gfx906", "2.5.1+rocm6.2", env={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}), "wrong_gfx_override", "unset HSA_OVERRIDE"),
        (ILLEGAL, machine("gfx1201", "2.13.0+rocm7.2"), "gpu_kernel_fault", "adapter.r=64"),
        (
            INT1,
            machine("gfx906", "2.5.1+rocm6.2", packages={"torchao": "0.15.0", "transformers": "4.57.6"}),
            "package_conflict",
            "pip uninstall torchao",
        ),
        (
            NO_GPU,
            machine("gfx1100", "2.9.1+rocm6.4", devices=READABLE | {"/dev/kfd": {"exists": True, "readable": False}}),
            "device_access_denied",
            "usermod",
        ),
    ],
    ids=["override", "narrow products", "torchao", "kfd"],
)
def test_a_finding_that_explains_the_line_comes_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str, facts: dict[str, Any], cause: str, fix: str
) -> None:
    found = diagnosed(tmp_path, capsys, log, facts)
    assert found["cause"] == cause
    assert fix in found["remedies"][0]["what"]
    assert any(clue["line"] for clue in found["clues"])  # evidence of the log
    assert any("this machine" in clue["text"] for clue in found["clues"])  # and of the machine


def test_a_variable_that_changes_nothing_is_no_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnosed(tmp_path, capsys, FAULT, machine("gfx906", "2.5.1+rocm6.2", env={"HSA_OVERRIDE_GFX_VERSION": "9.0.6"}))
    assert found["cause"] == "gpu_kernel_fault"
    assert "wrong_gfx_override" not in [one["cause"] for one in found["also"]]


def test_a_machine_without_a_fault_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "b.log").write_text(FAULT)
    assert main(["diagnose", str(tmp_path / "b.log"), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    beside = diagnosed(tmp_path, capsys, FAULT, machine("gfx90a", "2.9.1+rocm6.4"))
    assert (beside["cause"], beside["remedies"]) == (alone["cause"], alone["remedies"])


def test_device_nodes_that_open_speak_against_access(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closed = diagnosed(
        tmp_path, capsys, NO_GPU, machine("gfx1100", "2.9.1+rocm6.4", devices={"/dev/kfd": {"exists": True, "readable": False}})
    )
    opened = diagnosed(tmp_path, capsys, NO_GPU, machine("gfx1100", "2.9.1+rocm6.4"))
    assert opened["confidence"] < closed["confidence"]


@pytest.mark.parametrize(
    ("template", "loss", "says"), [(True, 3.0, "has a chat template"), (False, 3.0, "no chat template"), (True, 11.9, "guessing")]
)
def test_a_run_is_told_of_its_own_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], template: bool, loss: float, says: str) -> None:
    from holdfast.diagnosis.at_hand import at_hand
    from holdfast.run.folder import RunFolder
    from holdfast.run.types import Diagnosis

    model, run = tmp_path / "model", tmp_path / "run"
    model.mkdir()
    run.mkdir()
    (model / "config.json").write_text(json.dumps({"vocab_size": 151_936}))
    if template:
        (model / "chat_template.jinja").write_text("{{ messages }}")
    (run / "config.yaml").write_text(f"model: {model}\n")
    found = at_hand(
        RunFolder(run), Diagnosis.plain("tokenizer_or_template", 0.8, "25 of 5,095 label tokens right"), {"loss": {"first": loss}}
    )
    assert says in found["explanation"]
    assert ("cp INSTRUCT" in json.dumps(found["remedies"])) is (not template)
