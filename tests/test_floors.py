"""The architecture as data: which room may import which, where torch may appear, how long a file may get."""

from __future__ import annotations

import ast
import functools
import sys
import warnings
from pathlib import Path
from typing import get_args

import pytest

from holdfast.config.config import Config
from holdfast.trainer.__main__ import JOBS
from support.each import assert_each

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
ROOMS = {"core", "inside", "mind", "world", "lab", "rows", "book", "trainer", "supervisor", "ship", "ui", "verbs"}
MAY_IMPORT = {
    "core": set(),
    "inside": set(),  # in other people's processes, where holdfast's own packages need not be
    "hf": {"inside"},
    "guard": {"inside"},
    "ray": {"core", "world"},  # in Ray's processes, where torch need not be
    "mind": {"core"},
    "world": {"core"},
    "book": {"core"},
    "rows": {"core", "book"},
    "lab": {"core", "mind", "world", "book"},
    "ui": {"core", "mind", "world", "book"},
    "trainer": {"core", "rows"},
    "supervisor": {"core", "mind", "world", "lab", "rows", "book", "ui"},
    "ship": {"core", "world", "rows"},
    "verbs": {"core", "mind", "world", "lab", "rows", "book", "ui", "supervisor", "ship"},
    "cli": {"core", "verbs"},
    "__main__": {"cli"},
    "__init__": set(),
}
HEAVY = {"torch", "transformers", "peft", "accelerate"}
HEAVY_ROOMS = {"trainer", "inside", "hf", "guard"}
RAY_FILES = ["ray.py", "data/workers/cluster.py"]
STANDARD_LIBRARY_ONLY = (
    "processes/shim.py",
    "processes/trainers.py",
    "processes/command_shim.py",
    "processes/tree.py",
    "base/identity.py",
    "processes/rank_environment.py",
    "base/safe_open.py",
    "base/wait.py",
)
REPORTED_LINES, FAILING_LINES = 300, 500
FILES = sorted(SOURCE.rglob("*.py"))
EACH = {str(file.relative_to(SOURCE)): file for file in FILES}


def under(folder: str) -> dict[str, Path]:
    return {name: file for name, file in EACH.items() if name.startswith(f"{folder}/")}


def room_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else file.stem


@functools.cache
def imported(file: Path) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def test_a_file_imports_only_from_the_rooms_below_it() -> None:
    def check(file: Path) -> None:
        room = room_of(file)
        ours = {name.split(".")[1] for name in imported(file) if name.startswith("holdfast.")} - {"__version__", room}
        assert ours <= MAY_IMPORT[room], f"{room} must not import {sorted(ours - MAY_IMPORT[room])}"

    assert_each(EACH, check)


@pytest.mark.parametrize("room", ["core", "rows", "trainer", "ship"])
def test_the_rooms_of_a_room_form_no_circle(room: str) -> None:
    above: dict[str, set[str]] = {}
    for file in sorted((SOURCE / room).rglob("*.py")):
        place = file.relative_to(SOURCE / room).parts[0].removesuffix(".py")
        names = {name.split(".")[2] for name in imported(file) if name.startswith(f"holdfast.{room}.")}
        above.setdefault(place, set()).update(names - {place})
    left = dict(above)
    while done := [place for place, needs in left.items() if not needs & set(left)]:
        for place in done:
            del left[place]
    assert not left, f"these import each other: {left}"


OWN_PARTS = {
    "data_check": {"second_look", "data_pass", "data_tables"},
    "data_clean": {"data_pass", "data_tables"},
    "data_make": {"data_write"},
}


def test_a_verb_imports_no_other_verb() -> None:
    def check(file: Path) -> None:
        others = {name.split(".")[2] for name in imported(file) if name.startswith("holdfast.cli.commands.")}
        assert others <= OWN_PARTS.get(file.stem, set()), sorted(others)

    assert_each(under("verbs"), check)


def test_torch_stays_on_its_island() -> None:
    def check(file: Path) -> None:
        heavy = {name.split(".")[0] for name in imported(file)} & HEAVY
        assert not heavy or room_of(file) in HEAVY_ROOMS, f"imports {heavy}"

    assert_each(EACH, check)


def test_ray_appears_in_two_files() -> None:
    users = [str(file.relative_to(SOURCE)) for file in FILES if "ray" in {name.split(".")[0] for name in imported(file)}]
    assert users == RAY_FILES


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_the_nurse_needs_the_standard_library_only(name: str) -> None:
    others = {module for module in imported(SOURCE / name) if module.split(".")[0] not in sys.stdlib_module_names}
    modules = {module if (SOURCE.parent / f"{module.replace('.', '/')}.py").exists() else module.rpartition(".")[0] for module in others}
    assert modules <= {f"holdfast.{file.removesuffix('.py').replace('/', '.')}" for file in STANDARD_LIBRARY_ONLY}


TASKS = sorted(entry.name for entry in (SOURCE / "trainer/tasks").iterdir() if (entry / "__init__.py").exists())


def test_each_task_has_what_is_done_before_training_and_what_trains() -> None:
    """By its name in the config alone: nothing else chooses."""
    prepared = sorted(file.stem for file in (SOURCE / "supervisor/tasks").glob("[!_]*.py"))
    assert prepared == TASKS == sorted(get_args(Config.model_fields["task"].annotation))


OF_ONE_TASK = {"trainer/tasks/__init__.py": set(TASKS), "trainer/traced/step.py": {"sft"}, "trainer/jobs/chat.py": {"sft"}}


def test_the_loop_serves_any_task() -> None:
    """Loop, step, training state and snapshots serve what `trainer/task.py` says of a task; which one it is, one place chooses."""

    def check(file: Path) -> None:
        name = str(file.relative_to(SOURCE))
        tasks = {module.split(".")[3] for module in imported(file) if module.startswith("holdfast.trainer.tasks.")} & set(TASKS)
        own = {Path(name).parts[2]} if name.startswith("trainer/tasks/") else set()
        assert tasks <= own | OF_ONE_TASK.get(name, set()), sorted(tasks)

    assert_each(under("trainer"), check)


def test_every_job_of_the_trainer_is_a_function_with_as_many_arguments() -> None:
    for name, work in JOBS.items():
        tree = ast.parse((SOURCE / "trainer/jobs" / f"{work.module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == work.function]
        assert [len(node.args.args) for node in found] == [len(work.arguments)], name


def test_files_stay_short_enough_to_live_in() -> None:
    sizes = {str(file.relative_to(SOURCE)): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    for name, size in sizes.items():
        if size > REPORTED_LINES:
            warnings.warn(UserWarning(f"{name} has {size} lines"), stacklevel=1)
    assert not {name: size for name, size in sizes.items() if size > FAILING_LINES}


test_files_stay_short_enough_to_live_in = pytest.mark.filterwarnings("default")(test_files_stay_short_enough_to_live_in)
