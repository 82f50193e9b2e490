"""Look at a machine from Python, as `holdfast doctor` does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from holdfast.api.command import Given, ask, file_of, plainly
from holdfast.base.errors import BLOCKED, DONE
from holdfast.base.files import Json
from holdfast.run.types import Finding

_FIELDS = [field.name for field in fields(Finding)]


@dataclass(frozen=True)
class Checkup:
    """verdict: ready, risky or blocked; env: variables that suit the machine; machine: its facts, as a machine file holds them."""

    verdict: str
    findings: tuple[Finding, ...]
    env: Json
    machine: Json


@plainly
def doctor(config: Given | None = None, machine: Given | None = None) -> Checkup:
    """Say what would fail on this machine, or on a recorded one (a file or a dict), for a run of this config. Changes nothing.

    A machine that blocks a run is no error: its verdict is "blocked". Raises Stop where config or machine cannot be read.
    """
    with contextlib.ExitStack() as stack:
        words = ["doctor"]
        if config is not None:
            words.append(str(stack.enter_context(_file(config, "run.yaml"))))
        if machine is not None:
            words += ["--machine", str(stack.enter_context(_file(machine, "machine.json")))]
        answer = ask(words, told=lambda _: None, fine=(DONE, BLOCKED))
    findings = tuple(Finding(**{name: one[name] for name in _FIELDS if name in one}) for one in answer["findings"])
    return Checkup(answer["verdict"], findings, answer["env"], answer["machine"])


def _file(given: Given, name: str) -> contextlib.AbstractContextManager[Path]:
    return file_of(given, name) if isinstance(given, Mapping) else contextlib.nullcontext(Path(given).expanduser())
