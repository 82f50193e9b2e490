"""How the children that need torch are started: the command of a job, and its environment. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.file_errors import current_folder

NOTES = "notes.jsonl"  # what a child that measures has to say to the user, beside what it found: {part, text}
PROGRESS = "progress.jsonl"  # how far it is: {part, what, done, total, time}
_SOURCE = Path(__file__).resolve().parents[2]  # the folder that the package lies in
_BEFORE_3_11 = (  # what -P does there
    "import sys; del sys.path[0], sys.argv[0]; import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def module_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of ours, and imports nothing from the current folder: somebody's own json.py may lie there."""
    if current_folder() == _SOURCE:
        begin = [sys.executable, "-m"]
    else:
        begin = [sys.executable, "-P", "-m"] if sys.version_info >= (3, 11) else [sys.executable, "-c", _BEFORE_3_11]
    return [*begin, module, *map(str, arguments)]


def trainer_command(job: str, *arguments: object) -> list[str]:
    """Return the command of one job of the trainer (`holdfast/trainer/__main__.py` names them)."""
    return module_command("holdfast.trainer", job, *arguments)


def with_env(environment: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return the environment with changes (None: unset)."""
    return {name: value for name, value in {**environment, **changes}.items() if value is not None}
