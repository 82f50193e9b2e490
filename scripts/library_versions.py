"""Run a few tests under the oldest transformers and PEFT that pyproject.toml claims, under some between, and under the newest.

    python scripts/library_versions.py [oldest|last4|first5|newest ...]     all of them where none is named; needs a package index
    python scripts/library_versions.py --names     write tests/project/oldest_names.txt: the names src uses that the oldest have

pip installs each set into build/versions, without dependencies but for the tokenizers and huggingface_hub that it asks for; torch and
all else are this environment's. Exit code 1 where a test fails under any of them.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE, NAMES, FOLDER = ROOT / "src" / "holdfast", ROOT / "tests" / "project" / "oldest_names.txt", ROOT / "build" / "versions"
LIBRARIES = ("transformers", "peft", "tokenizers", "huggingface_hub")
_ASKED = ("tokenizers", "huggingface-hub")  # by transformers, in ranges that leave each other out
SETS = {  # the last 4 is what the doctor advises, with the PEFT that pip then takes
    "oldest": (),
    "last4": ("transformers<5", "peft"),
    "first5": ("transformers==5.0.0", "peft==0.18.1"),
    "newest": ("transformers", "peft"),
}
TESTS = (  # train, die, resume, load with plain PEFT, in LoRA, full, 4 bits and pairs; export, verify, serve
    "tests/experiments/test_replay.py::test_the_run_equals_a_plain_peft_loop",
    "tests/experiments/test_replay.py::test_the_artifact_is_what_plain_peft_loads",
    "tests/trainer/test_objectives.py::test_a_run_of_pairs_survives_a_kill_to_the_bit_and_tells_margins",
    "tests/trainer/test_quantised.py::test_a_run_on_4_bits_ends_with_an_adapter_and_says_what_it_was_trained_on",
    "tests/trainer/test_tokens_experts_noise.py::test_a_state_is_all_that_later_steps_need_and_peft_loads_what_is_left[tokens]",
    "tests/export/test_export.py::test_a_run_that_trained_all_weights_is_exported_and_verified",
    "tests/export/test_export.py::test_a_run_is_exported_as_a_user_does_it_and_not_on_another_base",
    "tests/verify/test_verify.py::test_batched_answers_are_those_of_plain_generate",
    "tests/serve/test_serve.py::test_the_openai_client_talks_to_both_models",
    "tests/acceptance/test_run_command.py::test_a_trainer_script_that_dies_goes_on_from_its_newest_whole_checkpoint",
)
_FOUND = """
import importlib, sys
for line in sys.stdin.read().splitlines():
    module, _, name = line.partition(" ")
    try:
        try:
            place = importlib.import_module(module)
        except ModuleNotFoundError:
            place = getattr(importlib.import_module(module.rpartition(".")[0]), module.rpartition(".")[2])
        if name and not hasattr(place, name):
            importlib.import_module(f"{module}.{name}")
    except (ImportError, AttributeError):
        continue
    print(line)
"""


def floors() -> dict[str, str]:
    """Return {library: the oldest version that pyproject.toml claims} of transformers, PEFT and huggingface_hub."""
    train = re.search(r"^train = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert train, "pyproject.toml has no extra 'train'"
    return {name: floor for name, floor in re.findall(r'"([\w-]+)>=([\d.]+)"', train.group(1)) if name in LIBRARIES}


def used_names(folder: Path = SOURCE) -> dict[str, str]:
    """Return {"MODULE NAME": its first place} of what the modules below `folder` take of the libraries, but in a `try` of `_catches`."""
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for line, name in _names(tree):
            found.setdefault(name, f"{file.relative_to(folder)}:{line}")
    return found


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    excused = {inner for one in ast.walk(tree) if _catches(one) for part in one.body for inner in ast.walk(part)}
    known: dict[str, str] = {}
    for one in ast.walk(tree):
        if isinstance(one, ast.Import):
            names = [(part.asname or part.name.partition(".")[0], part.name, "") for part in one.names]
        elif isinstance(one, ast.ImportFrom) and one.module and not one.level:
            names = [(part.asname or part.name, one.module, part.name) for part in one.names]
        else:
            continue
        for own, module, name in names:
            if module.partition(".")[0] in LIBRARIES:
                known[own] = f"{module}.{name}" if name else module if own != module.partition(".")[0] else own
                if one not in excused:
                    yield one.lineno, f"{module} {name}".strip()
    for one in ast.walk(tree):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in known and one not in excused:
            yield one.lineno, f"{known[one.value.id]} {one.attr}"


def _catches(one: ast.AST) -> bool:
    """Return whether it is a `try` that goes on where something cannot be imported or is not there."""
    if not isinstance(one, ast.Try):
        return False
    caught = {name.id for part in one.handlers if part.type for name in ast.walk(part.type) if isinstance(name, ast.Name)}
    return not {"ImportError", "ModuleNotFoundError", "AttributeError"}.isdisjoint(caught)


def install(name: str) -> Path:
    """Install a set, unless a pinned one is there; return its folder."""
    oldest = name == "oldest"
    wanted = [f"{library}=={floors()[library]}" for library in ("transformers", "peft")] if oldest else list(SETS[name])
    folder, half = FOLDER / "+".join(wanted), FOLDER / "half"
    if folder.exists() and all("==" in one for one in wanted):
        return folder
    shutil.rmtree(half, ignore_errors=True)
    _pip(half, wanted)
    asked = [Requirement(text) for one in distributions(path=[str(half)]) if one.name == "transformers" for text in one.requires or ()]
    asked = [one for one in asked if canonicalize_name(one.name) in _ASKED and not one.marker]
    _pip(half, [_lowest(one) if oldest else f"{one.name}{one.specifier}" for one in asked])
    shutil.rmtree(folder, ignore_errors=True)
    return half.rename(folder)


def _lowest(asked: Requirement) -> str:
    return f"{asked.name}=={next(one.version for one in asked.specifier if one.operator == '>=')}"


def _pip(folder: Path, wanted: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", "--target", str(folder), *wanted]
    subprocess.run(command, check=True)


def _under(folder: Path, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with the libraries of `folder` before those of this environment; what it prints is kept where text is `given`."""
    command = [sys.executable, "-W", "ignore", *arguments]
    kept = subprocess.PIPE if given is not None else None
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(folder)}, input=given, stdout=kept, text=True, check=False)


def _versions(folder: Path) -> str:
    return " ".join(sorted(f"{one.name}=={one.version}" for one in distributions(path=[str(folder)])))


def write_names() -> int:
    """Write which of the names that src uses the oldest versions have; return 1 where one is missing."""
    folder, used = install("oldest"), used_names()
    found = _under(folder, "-c", _FOUND, given="\n".join(sorted(used))).stdout.splitlines()
    NAMES.write_text(f"# {_versions(folder)}: python scripts/library_versions.py --names\n" + "".join(f"{line}\n" for line in found))
    missing = [f"{place}: {name}" for name, place in used.items() if name not in found]
    print(*missing, sep="\n", end="\n" if missing else "")
    return 1 if missing else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}")
    parser.add_argument("--names", action="store_true", help="write the names that the oldest versions have")
    asked = parser.parse_args()
    if asked.names:
        return write_names()
    failed = []
    for name in asked.sets or SETS:
        folder = install(name)
        print(f"== {name}: {_versions(folder)}", flush=True)
        # warnings of other versions are not ours: those that the suite makes errors stay warnings
        if _under(folder, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", "-m", "long or not long", *TESTS).returncode:
            failed.append(name)
    print(f"failed under: {', '.join(failed)}" if failed else "passed under each")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
