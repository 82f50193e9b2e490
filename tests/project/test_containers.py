"""Dockerfiles and dev container: well-formed, copying what exists, and never replacing the torch of their image."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser

from conftest import ROOT, holdfast

KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "ENV", "COMMENT", "USER"}
FILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def instructions(file: Path, scratch: Path) -> list[dict[str, str]]:
    parser = DockerfileParser(path=str(scratch))
    parser.content = file.read_text()
    return parser.structure


def test_there_is_one_for_each_kind_of_machine() -> None:
    assert [file.name for file in FILES] == ["cpu.Dockerfile", "cuda.Dockerfile", "rocm.Dockerfile"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_dockerfile_is_well_formed_and_copies_what_exists(file: Path, tmp_path: Path) -> None:
    found = instructions(file, tmp_path)
    assert {entry["instruction"] for entry in found} <= KNOWN
    assert any(entry["instruction"] == "FROM" for entry in found)
    for entry in found:
        if entry["instruction"] == "COPY":
            *sources, _ = entry["value"].split()
            assert all((ROOT / source).exists() for source in sources), entry["value"]
        if entry["instruction"] == "RUN":
            assert not re.search(r"&&\s*$|\\\s*$", entry["content"].rstrip("\n"))
    assert json.loads(found[-1]["value"]) == ["holdfast"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_in_an_image_runs_as_root(file: Path, tmp_path: Path) -> None:
    found = [entry["instruction"] for entry in instructions(file, tmp_path)]
    users = [entry["value"] for entry in instructions(file, tmp_path) if entry["instruction"] == "USER"]
    assert users == ["holdfast"] and "RUN" not in found[found.index("USER") :]
    assert "--user" in file.read_text() and "@sha256:" in file.read_text()


@pytest.mark.parametrize("file", [file for file in FILES if file.name != "cpu.Dockerfile"], ids=lambda file: file.name)
def test_a_gpu_image_checks_that_its_torch_was_not_replaced(file: Path) -> None:
    text = file.read_text()
    assert "diff - /tmp/torch-before" in text
    assert not re.search(r"pip install[^\n]*\btorch\b", text)
    assert "[train]" not in text, "the extra names torch, and an installer may then replace it"


def test_the_dev_container_is_json_and_uses_the_makefile() -> None:
    settings = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    target = settings["postCreateCommand"].removeprefix("make ")
    assert target.replace(".venv", "$(VENV)") + ":" in (ROOT / "Makefile").read_text()


NEW, OLD = {"cuda": {"driver": "580.65.06"}}, {"cuda": {"driver": "535.183.01"}}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"gpus": [{"arch": "sm_120"}]} | NEW, "pytorch/pytorch:2.9.0-cuda13.0-cudnn9-runtime"),
        ({"gpus": [{"arch": "sm_86"}]} | OLD, "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime"),
        ({"gpus": [{"arch": "sm_61"}]} | OLD, "pytorch/pytorch:2.9.0-cuda12.6-cudnn9-runtime"),
        ({"gpus": [{"arch": "sm_80"}], "cuda": {"driver": "470.256.02"}}, "pytorch/pytorch:2.7.0-cuda11.8-cudnn9-runtime"),
        ({"gpus": [{"arch": "sm_35"}]} | NEW, "whl/cpu"),
        ({"gpus": [{"arch": "gfx906"}]}, "whl/rocm6.3"),
        ({"gpus": [{"arch": "gfx90a"}], "rocm": {"driver": "6.7.0"}}, "whl/rocm6.4"),
        ({"gpus": [{"arch": "gfx90a"}], "rocm": {"driver": "6.8.5"}}, "whl/rocm7.0"),
        ({"gpus": [{"arch": "gfx1036", "integrated": True}, {"arch": "gfx1201"}]}, "whl/rocm7.2"),
        ({"gpus": [{"arch": "gfx1031"}]}, "HSA_OVERRIDE_GFX_VERSION=10.3.0"),
        ({"gpus": [{"arch": "gfx803"}]}, "whl/cpu"),
        ({"gpus": [{"arch": "gfx1100"}], "os": {"wsl": True}}, "whl/cpu"),
        ({"gpus": [{"arch": "sm_86"}], "os": {"system": "Darwin"}}, "whl/cpu"),
        ({"gpus": []}, "whl/cpu"),
        ({}, "whl/cpu"),
        ({"gpus": [{"arch": 7}], "cuda": {"driver": []}}, "whl/cpu"),
    ],
)
def test_the_doctor_names_the_image_that_fits_card_and_driver(facts: dict[str, Any], expected: str, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(json.dumps(facts))
    done = holdfast("doctor", "--image", "--machine", file, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert expected in f"{answer['base']} {answer['build']} {answer['run']}", answer
    dockerfile = ROOT / answer["build"].split(" -f ")[1].split()[0]
    argument = answer["build"].split("--build-arg ")[1].partition("=")[0]
    assert f"ARG {argument}" in dockerfile.read_text()
    assert ("--gpus all" in answer["run"]) == ("pytorch/pytorch" in answer["base"])
    assert ("/dev/kfd" in answer["run"]) == ("rocm" in answer["build"])
