"""How the children that need torch are started: the command of a job, and its environment. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping


def trainer_command(job: str, *arguments: object) -> list[str]:
    """The command of one job of the trainer (`holdfast/trainer/__main__.py` names them)."""
    return [sys.executable, "-m", "holdfast.trainer", job, *map(str, arguments)]


def with_env(environment: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """An environment with changes (None: unset)."""
    return {name: value for name, value in {**environment, **changes}.items() if value is not None}
