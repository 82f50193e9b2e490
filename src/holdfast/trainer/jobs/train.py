"""Begin an attempt: write down who trains before anything slow is imported, then train."""

from __future__ import annotations

from pathlib import Path

from holdfast.base.tasks import kind_of
from holdfast.trainer.common.job import register
from holdfast.trainer.common.libraries import libraries


def train(path: Path, number: int) -> int:
    """Run attempt `number` of the run at `path` as its trainer; return the exit code."""
    attempt = register(path, number)
    with libraries(of_text="transformers" in kind_of(attempt.config).packages):
        from holdfast.trainer.loop import loop
    return loop.train(attempt)
