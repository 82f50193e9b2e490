"""The variables a command is started with beside its user's own."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.run.command import Command

_SITE = Path(__file__).parents[2] / "callback" / "site"


def environment_of(command: Command, checkpoint: Path | None, snapshot: Path) -> dict[str, str | None]:
    """Return the callback's variables: where to resume from and keep its state; with --callback, a PYTHONPATH that registers it."""
    found: dict[str, str | None] = {
        "HOLDFAST_RESUME": str(checkpoint.resolve()) if checkpoint is not None else None,
        "HOLDFAST_SNAPSHOT": str(snapshot),
    }
    if "PYTHONUNBUFFERED" not in os.environ:
        found["PYTHONUNBUFFERED"] = "1"  # so that a killed program's last words are there
    if command.callback:
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SITE), os.environ.get("PYTHONPATH")]))
    return found
