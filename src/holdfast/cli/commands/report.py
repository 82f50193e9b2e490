"""`holdfast report RUN`: regenerate a run's one-file report."""

from __future__ import annotations

import argparse
from pathlib import Path

from holdfast.base.errors import DONE, reading
from holdfast.base.files import Json
from holdfast.base.inert import inert
from holdfast.report.pages import writing
from holdfast.report.run.report import write_report
from holdfast.run.folder import RunFolder

EXAMPLE = "holdfast report runs/quickstart --out report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="a run folder, finished or not")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: RUN/report.html)")
    parser.add_argument("--json", action="store_true", help="print the path as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    folder = RunFolder(arguments.run_folder.resolve())
    if not folder.command_file.exists():
        folder.existing()
    out = arguments.out.resolve() if arguments.out else folder.path / "report.html"
    with writing(out, "choose another place with --out FILE"), reading(folder.path):
        write_report(folder, out)
    if not arguments.json:
        print(inert(str(out)))
    return DONE, {"report": str(out)}
