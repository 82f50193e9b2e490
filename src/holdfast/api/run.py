"""A run as Python sees it: where it stands, its losses and events, and what it left. Reads its folder; starts and changes nothing."""

from __future__ import annotations

import html
import os
from pathlib import Path
from typing import Any

from holdfast.base.files import Json, read_json
from holdfast.run.folder import RunFolder

_COLUMNS = ("step", "loss", "grad_norm", "lr", "tokens", "seconds")


class Run:
    """A run folder, read anew at each question; so it tells of a run that goes on elsewhere, too."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """Open a run folder. Raises Stop where it is none."""
        return cls(RunFolder(Path(path).expanduser().resolve()).existing())

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._folder.path

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.path.name

    @property
    def status(self) -> str:
        """running, finished, gave_up, interrupted or dead, as `holdfast status` tells it."""
        from holdfast.supervision.standing import look

        return look(self._folder).state

    @property
    def steps(self) -> dict[str, list[Any]]:
        """Its committed steps, as columns: `pandas.DataFrame(run.steps)`. Empty before the first."""
        rows = list(self._folder.steps())
        return {name: [row.get(name) for row in rows] for name in _COLUMNS}

    @property
    def losses(self) -> list[float | None]:
        """The training loss of each committed step; None where all samples of a step are in quarantine."""
        return [row["loss"] for row in self._folder.steps()]

    @property
    def evaluations(self) -> list[Json]:
        """Held-out losses on the way (evaluate.every): step, loss, best."""
        from holdfast.run.evaluations import read_evaluations

        return read_evaluations(self._folder)

    @property
    def events(self) -> list[Json]:
        """Every decision and every odd thing, in order: what events.jsonl holds."""
        return list(self._folder.events())

    @property
    def rows(self) -> Json | None:
        """What data.json holds: rows = kept + mended + rejected, by_reason, and what is `learned`; None before it is written."""
        return read_json(self._folder.data_report_file)

    @property
    def learned(self) -> dict[str, int]:
        """Of the kept rows, held-out ones too: answers, learned, without_end, tool_calls_left_out, reasoning_left_out; {} for a table."""
        return dict((self.rows or {}).get("learned", {}))

    @property
    def warnings(self) -> list[str]:
        """What of the rows is lost: rejected ones, answers cut off or left out, ends that are not learned; a sentence each."""
        from holdfast.report.data.rows_told import row_warnings, rows_line

        data = self.rows
        if not data:
            return []
        lost = [f"{rows_line(data)}; rejects with reasons: {self._folder.rejects_file}"] if data["rejected"] else []
        return lost + row_warnings(data, self._folder.config().data.train_on)

    @property
    def summary(self) -> Json | None:
        """What summary.json holds; None before the run has ended once."""
        return read_json(self._folder.summary_file)

    @property
    def adapter_path(self) -> Path | None:
        """The finished adapter, loadable by PEFT; None where there is none (yet), as after a full fine-tune."""
        return self._folder.adapter if self._folder.adapter.is_dir() else None

    @property
    def artifact_path(self) -> Path | None:
        """What the run has made: an adapter, a whole model or a network; None before it is finished."""
        return self._folder.artifact.resolve() if self._folder.artifact.exists() else None

    def report(self, out: str | os.PathLike[str] | None = None) -> Path:
        """Write its one-file report (RUN/report.html, or `out`) and return the path. Raises OSError where it cannot be written."""
        from holdfast.report.run.report import write_report

        file = Path(out).expanduser().resolve() if out else self.path / "report.html"
        write_report(self._folder, file)
        return file

    def _lines(self) -> list[tuple[str, str]]:
        """Return the run's state in (name, value) lines, and its rows."""
        from holdfast.report.data.rows_told import rows_line

        rows = [("rows", rows_line(self.rows))] if self.rows else []
        return [*self._standing(), *rows, *(("!", told) for told in self.warnings)]

    def _standing(self) -> list[tuple[str, str]]:
        from holdfast.report.summary_lines import summary_lines
        from holdfast.supervision.standing import look

        found = look(self._folder)
        if found.state == "running" or not found.summary:
            step = f"step {found.step:,} of {found.steps:,}" if found.steps is not None else "not planned yet"
            return [("status", found.state), ("steps", step), ("folder", str(self.path))]
        return summary_lines(found.summary, self._folder)

    def __repr__(self) -> str:
        status, steps = self._standing()[0][1], self._folder.committed()
        return f"<holdfast.Run {self.name!r}: {status}, {steps:,} steps>"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in self._lines())
        return f"<b>{html.escape(self.name)}</b><table>{rows}</table>"
