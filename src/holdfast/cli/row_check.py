"""What `data check` and `data clean` do with rows that are no texts: each kind of task may bring a check of its own. No verb of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.tasks import kind_of, look_up, task_kinds
from holdfast.config.config import Config
from holdfast.config.load import load_config
from holdfast.supervision.preparation.throwaway import check_command


@dataclass(frozen=True)
class RowCheck:
    """A kind's own check of rows.

    add_arguments: options beside those of texts; claim: what its rows are, given the arguments and the config that is named (None: none
    is), or None where they are not of this kind. check, clean: take arguments and claim; (exit code, answer). All may raise Stop.
    """

    add_arguments: Callable[[argparse.ArgumentParser], None]
    claim: Callable[[argparse.Namespace, Config | None], Any]
    check: Callable[[argparse.Namespace, Any], tuple[int, Json]]
    clean: Callable[[argparse.Namespace, Any], tuple[int, Json]]


def add_kinds(parser: argparse.ArgumentParser) -> None:
    """Add the options of all kinds that check rows of their own."""
    for check in _checks().values():
        check.add_arguments(parser)


def checked_by_kind(arguments: argparse.Namespace) -> tuple[RowCheck, Any] | None:
    """Return the check whose rows these are, and what it makes of them; None for texts. Raises Stop(2)."""
    checks = _checks()
    if arguments.config:
        config = load_config(arguments.config)
        kind = kind_of(config)
        if kind.name not in checks:
            way = check_command(config) if kind.text_rows else "leave --config out and name the files"
            raise Stop(USAGE, f"{arguments.config} is of {kind.what} (task: {kind.name}); its rows are looked at without it", way)
        return checks[kind.name], checks[kind.name].claim(arguments, config)
    if not arguments.paths:
        raise Stop(USAGE, "no file is named", "name files, folders or patterns; for a table its config, too: --config FILE")
    for path in arguments.paths:
        if path.lower().endswith((".yaml", ".yml")) and Path(path).is_file():
            way = check_command(load_config(Path(path)), written=Path(path))
            raise Stop(USAGE, f"{path} is a config, no file of rows", way)
    return next(((check, claimed) for check in checks.values() if (claimed := check.claim(arguments, None))), None)


def _checks() -> dict[str, RowCheck]:
    return {kind.name: look_up(kind.row_check) for kind in task_kinds() if kind.row_check}
