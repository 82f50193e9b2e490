"""YAML that was received: bombs, depths and numbers get an answer in a sentence, at once, wherever YAML is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.base.errors import USAGE, Stop
from holdfast.base_model.folder import read_model
from holdfast.config.load import load_config
from holdfast.data.recipe.recipe_file import read_file

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]\n" for at in range(1, 12))
TEXTS = {
    "a bomb of lists": (BOMB, "repeats a list or mapping"),
    "a bomb of mappings": ("a: &a {b: 1}\nc: {<<: *a, d: [*a, *a]}\n", "repeats a list or mapping"),
    "itself": ("a: &a [*a]\n", "repeats a list or mapping"),
    "depth in brackets": ("a: " + "[" * 50_000, "levels inside each other"),
    "depth before many values": ("a: " + "[" * 65 + "x, " * 20_001, "levels inside each other"),  # what lies deeper is not read
    "depth in braces": ("a: " + "{a: " * 5_000, "levels inside each other"),
    "depth in lines": ("".join(" " * at + "a:\n" for at in range(200)), "levels inside each other"),
    "a number of many digits": ("train: {steps: " + "9" * 5_000 + "}", "a number of 5,000 characters"),
    "a hexadecimal one": ("train: {steps: 0x" + "f" * 100_000 + "}", "a number of 100,002 characters"),
    "a sexagesimal one": ("train: {steps: 1" + ":59" * 30_000 + "}", "a number of 90,001 characters"),
    "a day that is none": ("train: {steps: 2026-99-99}", "month"),
    "a tag of Python": ("train: !!python/object/apply:os.system ['true']", "not valid YAML"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_config_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    text, told = TEXTS[name]
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(Stop) as stop:
        load_config(file)
    assert stop.value.code == USAGE
    assert told in stop.value.message
    assert len(stop.value.message) < 1000


@pytest.mark.parametrize("name", TEXTS)
def test_so_is_a_recipe(name: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(TEXTS[name][0])
    with pytest.raises(ValueError):
        read_file(file)


@pytest.mark.parametrize("text", ["9" * 5_000, "1" + ":59" * 30_000, "2026-99-99", "[" * 5_000, "&a [*a]"])
def test_so_is_an_override(text: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: tiny\ndata: {files: run.yaml}\n")
    with pytest.raises(Stop) as stop:
        load_config(file, [f"train.steps={text}"])
    assert stop.value.code == USAGE and "train.steps" in stop.value.message
    assert len(stop.value.message) < 1000


def test_a_name_for_a_scalar_may_be_repeated(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: tiny\ndata: {files: run.yaml}\ntrain: {seed: &seed 7, steps: *seed}\n")
    assert load_config(file).train.steps == 7


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/rows.jsonl", "a\\0b"])
@pytest.mark.parametrize("key", ["model", "files", "start"])
def test_a_path_that_can_be_none_is_a_problem_of_the_config(tmp_path: Path, key: str, name: str) -> None:
    files, adapter = (name, "{}") if key == "files" else ("rows.jsonl", f'{{start: "{name}"}}' if key == "start" else "{}")
    model = name if key == "model" else "tiny"
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "run.yaml").write_text(f'model: "{model}"\ndata: {{files: ["{files}"]}}\nadapter: {adapter}\n')
    with pytest.raises(Stop):
        read_model(load_config(tmp_path / "run.yaml").model)
