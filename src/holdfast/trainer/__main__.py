"""Entry of every child that needs torch: `python -m holdfast.trainer JOB ...`. Each job imports only what it needs."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from holdfast.core.errors import DeviceGone
from holdfast.core.types import EXIT_DEVICE_GONE
from holdfast.trainer.libraries import libraries


def main(argv: list[str]) -> int:
    """Do one job; the exit code. A GPU that is gone ends it with a sentence, for the parent to wait."""
    faulthandler.enable()
    try:
        return _do(argv)
    except DeviceGone as gone:
        print(f"holdfast: {gone}", file=sys.stderr)
        return EXIT_DEVICE_GONE


def _do(argv: list[str]) -> int:
    job, rest = argv[0], argv[1:]
    if job == "train":
        from holdfast.trainer.job import register

        attempt = register(Path(rest[0]), int(rest[1]))
        with libraries():
            from holdfast.trainer.loop import train
        return train(attempt)
    if job == "standby":
        with libraries():
            from holdfast.trainer.jobs.standby import stand_by
        return stand_by(Path(rest[0]), with_model=rest[1] == "model")
    if job == "trial":
        with libraries():
            from holdfast.trainer.jobs.trial import trial
        return trial(Path(rest[0]), Path(rest[1]))
    if job == "trials":
        with libraries():
            from holdfast.trainer.jobs.trial import host_trials
        return host_trials(Path(rest[0]))
    if job == "evaluate":
        with libraries():
            from holdfast.trainer.jobs.evaluate import evaluate
        return evaluate(Path(rest[0]), int(rest[1]))
    if job == "chat":
        with libraries():
            from holdfast.trainer.jobs.chat import chat
        return chat(Path(rest[0]))
    if job == "losses":
        with libraries():
            from holdfast.trainer.jobs.losses import losses
        return losses(Path(rest[0]))
    if job == "probe":
        from holdfast.trainer.jobs.torch_facts import probe

        return probe()
    if job == "probes":
        from holdfast.trainer.jobs.probes.host import probe_functions

        return probe_functions(Path(rest[0]), int(rest[1]))
    raise SystemExit(f"unknown job {job!r}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
