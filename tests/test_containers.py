"""Dockerfiles and dev container: well-formed, copying what exists, and never replacing the torch of their image."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from dockerfile_parse import DockerfileParser

from conftest import ROOT

KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "ENV", "COMMENT"}
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
