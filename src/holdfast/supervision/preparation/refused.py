"""What is left of a run that was refused before it began: nothing but the rejected rows. Decides nothing."""

from __future__ import annotations

import contextlib
import shutil

from holdfast.run.folder import RunFolder

_OF_PREPARATION = (
    *("run.json", "supervisor.lock", "supervisor.log", "events.jsonl", "machine.json", "plan.json", "timeline.jsonl"),
    *("start_adapter.safetensors", "sources.json", "data.safetensors", "data.json"),
)
LEFT = {"rejects.jsonl"}  # of a run that was refused: which rows, and why


def take_back(run: RunFolder) -> None:
    """Leave nothing of a run that was refused before it was prepared to the end, so that nothing takes it for one.

    Rejected rows stay to be read.
    """
    if run.config_file.exists() or run.command_file.exists() or run.steps_file.exists() or run.checkpoints.exists() or run.attempts():
        return
    for name in _OF_PREPARATION:
        (run.path / name).unlink(missing_ok=True)
    shutil.rmtree(run.token_shards, ignore_errors=True)
    if run.rejects_file.exists() and not run.rejects_file.stat().st_size:
        run.rejects_file.unlink()
    with contextlib.suppress(OSError):  # rejects are in it
        run.path.rmdir()
