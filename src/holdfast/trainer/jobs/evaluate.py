"""Measure what a run has made on its held-out rows, as its task does that. Judges nothing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.base.files import write_json
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import read_timeline, settings_of_process
from holdfast.trainer.tasks import task_of


def evaluate(path: Path, tell: int) -> int:
    """Write evaluation.json.

    tell: a descriptor that gets a dot for each row a model has been asked for, and a blank for each token it has made.
    """

    def asked(rows: int) -> None:
        with contextlib.suppress(OSError):  # nobody listens any more
            os.write(tell, b"." * rows or b" ")

    run = RunFolder(path)
    config, settings = run.config(), settings_of_process(read_timeline(run.timeline_file))
    write_json(run.evaluation_file, task_of(config).evaluate(run, config, settings, asked))
    return 0
