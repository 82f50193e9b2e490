"""A run's progress in a notebook: one line that changes, and below it only what went wrong."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from typing import Any

from holdfast.api.command import in_python
from holdfast.base.files import read_json
from holdfast.base.units import span
from holdfast.report.data.rows_told import rows_line
from holdfast.run.folder import RunFolder

_EVERY_S = 0.5


def in_notebook() -> bool:
    """True if this Python is a notebook's kernel."""
    get = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return getattr(get() if get else None, "kernel", None) is not None


class StatusLine:
    """The line. It is shown once, then changed in place."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.text, self.last = run, "", 0.0
        self.handle: Any = None

    def look(self) -> None:
        """Show where the run stands, at most twice a second."""
        if time.monotonic() - self.last < _EVERY_S:
            return
        self.last = time.monotonic()
        self._show(_standing(self.run))

    def told(self, line: str) -> None:
        """Print what the command says went wrong; an error it ends with is raised, and its summary is the run's own."""
        if line.startswith("! "):
            print(in_python(line.rstrip()))

    def end(self) -> None:
        """Show the last state, and the rejected rows; what else is lost was told on the way."""
        self._show(_standing(self.run))
        data = read_json(self.run.data_report_file) if self.run.path.is_dir() else None
        if data and data["rejected"]:
            print(f"! {rows_line(data)}; rejects with reasons: {self.run.rejects_file}")

    def _show(self, text: str) -> None:
        if text == self.text:
            return
        self.text = text
        if self.handle is None:
            self.handle = import_module("IPython.display").display({"text/plain": text}, raw=True, display_id=True)
        else:
            self.handle.update({"text/plain": text}, raw=True)


def _standing(run: RunFolder) -> str:
    """Say where a run stands, in one line."""
    from holdfast.supervision.runs import entry
    from holdfast.supervision.standing import look

    if not run.path.is_dir():
        return "starting"
    found = look(run)
    told = entry(found)
    if found.steps is None:
        return found.doing or found.state
    parts = [f"step {found.step:,}/{found.steps:,}"]
    if (loss := found.last_step.get("loss")) is not None:
        parts.append(f"loss {loss:.4f}")
    if told["seconds_left"] and told["doing"] == "training":
        parts.append(f"about {span(told['seconds_left']['likely'])} left")
    if told["doing"] != "training":
        parts.append(told["doing"] or found.state)
    return "  ".join(parts)
