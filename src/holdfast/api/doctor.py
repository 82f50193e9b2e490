"""Look at a machine from Python, as `holdfast doctor` does."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from holdfast.api.command import Given, ask, file_of, plainly
from holdfast.base.errors import BLOCKED, DONE
from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.checkup.checkup import VERDICTS
from holdfast.run.types import Finding

_FIELDS = [field.name for field in fields(Finding)]


@dataclass(frozen=True, repr=False)
class Checkup:
    """verdict: ready, risky or blocked; env: variables that suit the machine; machine: its facts, as a machine file holds them."""

    verdict: str
    findings: tuple[Finding, ...]
    env: Json
    machine: Json

    def __repr__(self) -> str:
        return f"<holdfast.Checkup: {self.verdict}, {counted(len(self.findings), 'finding')}>"

    def __str__(self) -> str:
        return "\n".join([": ".join(filter(None, row)) for row in self._lines()])

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in self._lines())
        return f"<b>{html.escape(self.verdict)}</b><table>{rows}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        """Return what `holdfast doctor` shows of the findings and the verdict, in (name, text) lines."""
        found = [(f"{one.severity} {one.id}", f"{one.message} -> {one.fix}" if one.fix else one.message) for one in self.findings]
        advised = [("env", f"{name}={value}") for name, value in self.env.items()]
        return [*found, *advised, ("", VERDICTS[self.verdict])]


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
