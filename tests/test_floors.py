"""The architecture as data: which room may import which, where torch may appear, how long a file may get."""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from holdfast.base.tasks import TaskKind, look_up, task_kinds
from holdfast.cli.commands.row_check import RowCheck
from holdfast.config.config import Config
from holdfast.run.artifact import KINDS
from holdfast.supervision.preparation.types import Preparation
from holdfast.trainer.__main__ import JOBS

SOURCE = Path(__file__).parent.parent / "src" / "holdfast"
ROOMS = {"core", "inside", "mind", "world", "lab", "rows", "book", "trainer", "supervisor", "ship", "ui", "verbs", "api"}
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
    "api": {"core", "world", "ui", "supervisor"},
    "__init__": {"api", "core"},  # for type checkers; at run time nothing is imported before it is asked for
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


def room_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else file.stem


def imported(file: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{file}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_from_the_rooms_below_it(file: Path) -> None:
    room = room_of(file)
    allowed = MAY_IMPORT[room] | {room}
    ours = {name.split(".")[1] for name in imported(file) if name.startswith("holdfast.")} - {"__version__"}
    assert ours <= allowed, f"{room} must not import {sorted(ours - allowed)}"


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
    "data_check": {"second_look", "data_pass", "row_check"},
    "data_clean": {"data_pass", "row_check"},
    "data_tables": {"row_check"},
    "data_make": {"data_write"},
}


@pytest.mark.parametrize("file", sorted((SOURCE / "verbs").glob("*.py")), ids=lambda file: file.stem)
def test_a_verb_imports_no_other_verb(file: Path) -> None:
    others = {name.split(".")[2] for name in imported(file) if name.startswith("holdfast.cli.commands.")}
    assert others <= OWN_PARTS.get(file.stem, set())


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_torch_stays_on_its_island(file: Path) -> None:
    heavy = {name.split(".")[0] for name in imported(file)} & HEAVY
    assert not heavy or room_of(file) in HEAVY_ROOMS, f"{file} imports {heavy}"


def test_ray_appears_in_two_files() -> None:
    users = [str(file.relative_to(SOURCE)) for file in FILES if "ray" in {name.split(".")[0] for name in imported(file)}]
    assert users == RAY_FILES


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_the_nurse_needs_the_standard_library_only(name: str) -> None:
    others = {module for module in imported(SOURCE / name) if module.split(".")[0] not in sys.stdlib_module_names}
    modules = {module if (SOURCE.parent / f"{module.replace('.', '/')}.py").exists() else module.rpartition(".")[0] for module in others}
    assert modules <= {f"holdfast.{file.removesuffix('.py').replace('/', '.')}" for file in STANDARD_LIBRARY_ONLY}


TASKS = sorted(entry.name for entry in (SOURCE / "trainer/tasks").iterdir() if (entry / "__init__.py").exists())


PATHS = ("own_sections", "rules", "preparation", "traced", "row_check", "trainer", "words", "usage", "measured")  # of a record


@pytest.mark.parametrize("kind", task_kinds(), ids=lambda kind: kind.name)
def test_the_record_of_a_kind_names_what_is_there(kind: TaskKind) -> None:
    for field in PATHS:
        path = getattr(kind, field)
        assert path is None or callable(look_up(path)) or field in ("own_sections", "preparation", "row_check"), path
    assert isinstance(look_up(kind.preparation), Preparation)
    assert kind.row_check is None or isinstance(look_up(kind.row_check), RowCheck)
    assert set(kind.artifacts) <= set(KINDS) and set(kind.sections) <= set(Config.model_fields)
    for module in kind.verbs.values():
        assert {"EXAMPLE", "add_arguments", "run"} <= set(vars(importlib.import_module(module)))


def test_a_record_has_no_default_and_names_are_taken_once() -> None:
    """A new kind answers every question itself: none falls to what another kind does."""
    assert all(field.default is MISSING and field.default_factory is MISSING for field in fields(TaskKind))
    names = [name for kind in task_kinds() for name in (kind.name, *kind.aliases)]
    assert len(names) == len(set(names))


NAMES = {name for kind in task_kinds() for name in (kind.name, *kind.aliases)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_nobody_compares_a_task_with_a_name(file: Path) -> None:
    """Which kind of task a run has is asked of its record (core/tasks/): a comparison gives each new kind some other kind's answer."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            asks = any(isinstance(side, ast.Attribute) and side.attr == "task" for side in (node.left, *node.comparators))
            said = {side.value for side in (node.left, *node.comparators) if isinstance(side, ast.Constant)}
            assert not (asks and said & NAMES), f"{file}:{node.lineno}"


OF_ONE_TASK = {"trainer/jobs/chat.py": {"sft"}}


@pytest.mark.parametrize("file", sorted((SOURCE / "trainer").rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_the_loop_serves_any_task(file: Path) -> None:
    """Loop, step, training state and snapshots serve what `trainer/task.py` says of a task; which one it is, one place chooses."""
    name = str(file.relative_to(SOURCE))
    tasks = {module.split(".")[3] for module in imported(file) if module.startswith("holdfast.trainer.tasks.")} & set(TASKS)
    own = {Path(name).parts[2]} if name.startswith("trainer/tasks/") else set()
    assert tasks <= own | OF_ONE_TASK.get(name, set())


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
