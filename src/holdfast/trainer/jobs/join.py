"""Be another rank's trainer in an attempt that the first rank began, where another launcher started both."""

from __future__ import annotations

from pathlib import Path

from holdfast.run.outcomes import exit_code
from holdfast.trainer.common.job import register
from holdfast.trainer.common.libraries import libraries


def join(path: Path, number: int) -> int:
    """Train as this rank of attempt `number` of the run at `path`; its exit code says where the first rank is in another attempt."""
    attempt = register(path, number)
    with libraries():
        from holdfast.trainer.distributed import rendezvous as meeting
        from holdfast.trainer.loop import loop
    if meeting.announced(number) != number:
        return exit_code("elsewhere")
    return loop.train(attempt)
