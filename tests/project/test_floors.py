"""The architecture as data: the order of the rooms, where torch may appear, what is pure, how long a file may get."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import warnings
from collections import Counter
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from holdfast.base.tasks import TaskKind, look_up, task_kinds
from holdfast.cli.row_check import RowCheck
from holdfast.config.config import Config
from holdfast.run.artifact import KINDS as ARTIFACTS
from holdfast.supervision.preparation.types import Preparation
from holdfast.trainer.__main__ import JOBS

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"
FLOORS = (  # a room imports those of the floors above it in this list, never one of its own floor or below
    {"base", "privacy", "callback"},  # callback: in other people's processes, where holdfast's own packages need not be
    {"base_model", "machine", "row_sources", "hf", "guard"},
    {"config"},
    {"run"},
    {"book", "processes", "ray"},  # ray: in Ray's processes, where torch need not be
    {"data", "checkup", "diagnosis"},
    {"experiments", "planning", "export"},
    {"report", "tables", "verify", "new_config"},
    {"terminal", "serve", "trainer", "supervision"},  # trainer is launched; only itself imports it. supervision tells an audience
    {"watch", "learn"},
    {"api", "cli"},  # what Python and a shell call
    {"__init__", "__main__"},  # __init__ imports the api when it is asked for
)
ALONE = {"callback": set(), "hf": {"callback"}, "guard": {"callback"}, "privacy": set()}
HEAVY = {"torch", "transformers", "peft", "accelerate"}
HEAVY_ROOMS = {"trainer", "callback", "hf", "guard"}
RAY_FILES = ["data/workers/cluster.py", "ray.py"]
STANDARD_LIBRARY_ONLY = (
    "processes/shim.py",
    "processes/command_session.py",
    "processes/trainers.py",
    "callback/standby.py",
    "processes/tree.py",
    "machine/clock.py",
    "machine/kernel_log.py",
    "machine/place.py",
    "base/signal_names.py",
    "processes/rank_environment.py",
    "base/identity.py",
    "base/errors.py",
    "base/safe_open.py",
    "base/wait.py",
    "run/outcomes.py",
)
PURE = (
    "supervision/policy/",
    "run/sampling/",
    "planning/memory/",
    "diagnosis/diagnose.py",
    "diagnosis/divergence.py",
    "diagnosis/collectives/guilty.py",
    "verify/stats.py",
)
IMPURE = {"os", "subprocess", "socket", "time", "random", "threading", "multiprocessing", "shutil", "tempfile"}
FLAT, CROWDED = (
    16,
    {"book/checks": "cards", "book/checks_data": "cards", "book/checks_tables": "cards", "cli/commands": "one file a command"},
)
REPORTED_LINES, FAILING_LINES = 300, 500
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(file.relative_to(SOURCE)) for file in FILES]
MODULES = {f"holdfast.{name.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__"): name for name in NAMES}


def room_of(name: str) -> str:
    return name.split("/")[0].removesuffix(".py")


@functools.cache
def imported(name: str) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{name}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and isinstance(node.args[0], ast.Constant):
            names.add(str(node.args[0].value))
    return frozenset(names)


@functools.cache
def files_imported(name: str) -> frozenset[str]:
    """Files of ours that a file imports, for its types alone and by a string included."""
    found = set()
    for module in imported(name):
        while module not in MODULES and "." in module:
            module = module.rpartition(".")[0]
        if module in MODULES:
            found.add(MODULES[module])
    return frozenset(found - {name})


def test_a_file_imports_only_from_the_floors_below_it() -> None:
    floor = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
    assert {room_of(name) for name in NAMES} == set(floor)
    wrong = {
        f"{name} -> {other}"
        for name in NAMES
        for other in files_imported(name)
        if room_of(name) != room_of(other)
        and (floor[room_of(other)] >= floor[room_of(name)] or room_of(other) not in ALONE.get(room_of(name), set(floor)))
    }
    assert not wrong
    assert not {name for name in NAMES if room_of(name) != "trainer" and any(room_of(other) == "trainer" for other in files_imported(name))}


def test_no_files_import_each_other() -> None:
    """In any room, through any number of others."""
    assert circles({name: set(files_imported(name)) for name in NAMES}) == {}


def test_no_folders_import_each_other() -> None:
    """In any room, through any number of others: what a folder needs can be read before it."""
    folders: dict[str, set[str]] = {}
    for name in NAMES:
        folders.setdefault(folder_of(name), set()).update(folder_of(other) for other in files_imported(name))
    assert circles(folders) == {}


def test_a_circle_of_folders_is_found() -> None:
    needs = {"a": {"a", "b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "above": {"a"}}
    assert circles(needs) == {"b": ["c"], "c": ["b"]}


def folder_of(name: str) -> str:
    """Return the folder of a file; a file of the top stands for itself."""
    return str(Path(name).parent) if "/" in name else name


def circles(needs: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return what is left, and what of that each needs, once all is taken away that needs nothing or is needed by nothing."""
    left = {name: others - {name} for name, others in needs.items()}
    while done := [name for name, others in left.items() if not others & set(left) or not any(name in two for two in left.values())]:
        for name in done:
            left.pop(name)
    return {name: sorted(others & set(left)) for name, others in left.items()}


def test_every_folder_of_code_is_a_package() -> None:
    """Without __init__.py a folder works in a checkout and is left out of a wheel."""
    assert not {str(file.parent) for file in FILES if not (file.parent / "__init__.py").exists()}


OWN_PARTS = {
    "data/check": {"data/second_look", "data/passes", "data/tables"},
    "data/clean": {"data/passes", "data/tables"},
    "data/make": {"data/write"},
}


def test_a_command_imports_no_other_command() -> None:
    for name in NAMES:
        if name.startswith("cli/commands/"):
            others = {other.removeprefix("cli/commands/").removesuffix(".py") for other in files_imported(name) if "cli/commands/" in other}
            assert others <= OWN_PARTS.get(name.removeprefix("cli/commands/").removesuffix(".py"), set()), name


def test_torch_stays_on_its_island() -> None:
    heavy = {name: {module.split(".")[0] for module in imported(name)} & HEAVY for name in NAMES}
    assert not {name: found for name, found in heavy.items() if found and room_of(name) not in HEAVY_ROOMS}


def test_ray_appears_in_two_files() -> None:
    assert [name for name in NAMES if "ray" in {module.split(".")[0] for module in imported(name)}] == RAY_FILES


@pytest.mark.parametrize("name", STANDARD_LIBRARY_ONLY)
def test_the_shim_needs_the_standard_library_only(name: str) -> None:
    assert {module for module in imported(name) if module.split(".")[0] not in sys.stdlib_module_names | {"holdfast"}} == set()
    assert files_imported(name) <= set(STANDARD_LIBRARY_ONLY)


def test_what_is_pure_reads_no_clock_and_starts_nothing() -> None:
    found = {name: {module.split(".")[0] for module in imported(name)} & IMPURE for name in NAMES if name.startswith(PURE)}
    assert not {name: modules for name, modules in found.items() if modules}
    assert len(found) > len(PURE)


def test_a_folder_is_small_enough_to_be_looked_through() -> None:
    count = Counter(str(Path(name).parent) for name in NAMES if not name.endswith("__init__.py"))
    assert not {folder: files for folder, files in count.items() if files > FLAT and folder not in CROWDED}


TASKS = sorted(entry.name for entry in (SOURCE / "trainer/tasks").iterdir() if (entry / "__init__.py").exists())


PATHS = ("own_sections", "rules", "preparation", "traced", "row_check", "trainer", "words", "usage", "measured")  # of a record


@pytest.mark.parametrize("kind", task_kinds(), ids=lambda kind: kind.name)
def test_the_record_of_a_kind_names_what_is_there(kind: TaskKind) -> None:
    for field in PATHS:
        path = getattr(kind, field)
        assert path is None or callable(look_up(path)) or field in ("own_sections", "preparation", "row_check"), path
    assert isinstance(look_up(kind.preparation), Preparation)
    assert kind.row_check is None or isinstance(look_up(kind.row_check), RowCheck)
    assert set(kind.artifacts) <= set(ARTIFACTS) and set(kind.sections) <= set(Config.model_fields)
    for module in kind.verbs.values():
        assert {"EXAMPLE", "add_arguments", "run"} <= set(vars(importlib.import_module(module)))


def test_a_record_has_no_default_and_names_are_taken_once() -> None:
    """A new kind answers every question itself: none falls to what another kind does."""
    assert all(field.default is MISSING and field.default_factory is MISSING for field in fields(TaskKind))
    names = [name for kind in task_kinds() for name in (kind.name, *kind.aliases)]
    assert len(names) == len(set(names))


def test_nobody_compares_a_task_with_a_name() -> None:
    """Which kind of task a run has is asked of its record (base/tasks/): a comparison gives each new kind some other kind's answer."""
    named = {name for kind in task_kinds() for name in (kind.name, *kind.aliases)}
    for name in NAMES:
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                sides = (node.left, *node.comparators)
                asks = any(isinstance(side, ast.Attribute) and side.attr == "task" for side in sides)
                assert not (asks and {side.value for side in sides if isinstance(side, ast.Constant)} & named), f"{name}:{node.lineno}"


OF_ONE_TASK = {"trainer/jobs/chat.py": {"text"}}


def test_the_loop_serves_any_task() -> None:
    """Loop, step, training state and snapshots serve what `trainer/protocol/task.py` says of a task; which one it is, one place chooses."""
    for name in (name for name in NAMES if name.startswith("trainer/")):
        tasks = {module.split(".")[3] for module in imported(name) if module.startswith("holdfast.trainer.tasks.")} & set(TASKS)
        own = {Path(name).parts[2]} if name.startswith("trainer/tasks/") else set()
        assert tasks <= own | OF_ONE_TASK.get(name, set()), name


def test_every_job_of_the_trainer_is_a_function_with_as_many_arguments() -> None:
    for name, work in JOBS.items():
        tree = ast.parse((SOURCE / "trainer/jobs" / f"{work.module.replace('.', '/')}.py").read_text(encoding="utf-8"))
        found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == work.function]
        assert [len(node.args.args) for node in found] == [len(work.arguments)], name


def test_files_stay_short_enough_to_live_in() -> None:
    sizes = {name: len((SOURCE / name).read_text(encoding="utf-8").splitlines()) for name in NAMES}
    for name, size in sizes.items():
        if size > REPORTED_LINES:
            warnings.warn(UserWarning(f"{name} has {size} lines"), stacklevel=1)
    assert not {name: size for name, size in sizes.items() if size > FAILING_LINES}


test_files_stay_short_enough_to_live_in = pytest.mark.filterwarnings("default")(test_files_stay_short_enough_to_live_in)


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports those of folders without an __init__.py by their names alone, and refuses the second."""
    tests = Path(__file__).parents[1]
    names = Counter(file.name for file in tests.rglob("test_*.py") if not (file.parent / "__init__.py").exists())
    assert [name for name, count in names.items() if count > 1] == []


def test_no_result_is_lost_for_a_temporary_folder_that_cannot_be_removed() -> None:
    """A disk that fails there would turn a written export or a verdict into an error; what lies inside of a result is removed or fails."""
    strict = [
        f"{name}:{node.lineno}"
        for name in NAMES
        for node in ast.walk(ast.parse((SOURCE / name).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "TemporaryDirectory"
        if "ignore_cleanup_errors" not in [word.arg for word in node.keywords] and name != "export/merge.py"
    ]
    assert not strict


def test_nobody_is_told_to_install_holdfast_from_an_index_and_each_extra_that_is_named_is_there() -> None:
    """Nothing is published under the name: extras are installed from a checkout."""
    root = SOURCE.parents[1]
    section = (root / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"(?m)^(\w+) = ", section))
    files = [*FILES, *SOURCE.rglob("*.yaml"), *(root / "docs").rglob("*.md"), *(root / "examples").rglob("*.py"), root / "README.md"]
    wrong = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        wrong += [f"{file}: {one[0]}" for one in re.finditer(r"pip install[^`\n;]*[ '\"]holdfast\b(?!')[^\n]{0,20}", text)]
        named = re.findall(r"'\.\[([a-z,]+)\]'|\binstall\(['\"](\w+)['\"]\)", text)
        wrong += [f"{file}: no extra {name}" for one in named for name in (one[0] or one[1]).split(",") if name not in extras]
    assert not wrong
