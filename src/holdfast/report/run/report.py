"""The report of a run: one HTML file that needs nothing else. Reads the run folder, computes nothing new, escapes every text.

Its sections differ by what is known: of a trainer of ours (report_training.py), of somebody else's command (report_command.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.base.files import Json, read_json, write_bytes
from holdfast.base.versions import __version__
from holdfast.privacy.scrub import Person, Scrubber, secrets_of
from holdfast.report.run.report_command import of_command
from holdfast.report.run.report_parts import machine_rows, notices, readings, rendered, without_secrets
from holdfast.report.run.report_training import of_training
from holdfast.report.words import unhealthy
from holdfast.run.folder import RunFolder

_SECTIONS: Json = {"wide": False, "samples": [], "table": [], "data": {}, "usage": "", "timeline": [], "config": ""}
_SECTIONS |= {"aside": [], "post_mortem": "", "command": "", "settings": []}


def write_report(run: RunFolder, out: Path) -> None:
    """Write the report of a run, finished or not, whole or not at all. Raises OSError."""
    write_bytes(out, render(run).encode("utf-8", errors="replace"))


def render(run: RunFolder) -> str:
    """Render the report as text."""
    scrubber = Scrubber(Person(secrets=secrets_of(os.environ)))  # a report is shown to others
    summary: Json = without_secrets(read_json(run.summary_file) or {}, scrubber)  # charts hold parts of it
    status = str(summary.get("status", "running"))
    shown: Json = _SECTIONS | {
        "name": run.path.name,
        "status": status,
        "good": status == "finished" and not unhealthy(summary),
        "notices": notices(run),
        "machine": machine_rows(run),
        "readings": readings(run),
        "version": __version__,
        "folder": str(run.path),
    }
    own = of_command(run, summary, status) if run.command_file.exists() else of_training(run, summary, status)
    return rendered("report.html", shown | own, scrubber)
