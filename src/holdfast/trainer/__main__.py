"""Entry of every child that needs torch: `python -m holdfast.trainer JOB ...`. Each job imports only what it needs."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from holdfast.trainer.libraries import libraries


def main(argv: list[str]) -> int:
    faulthandler.enable()
    job, rest = argv[0], argv[1:]
    if job == "train":
        from holdfast.trainer.job import register

        attempt = register(Path(rest[0]), int(rest[1]))
        with libraries():
            from holdfast.trainer.loop import train
        return train(attempt)
    if job == "standby":
        with libraries():
            from holdfast.trainer.standby import stand_by
        return stand_by(Path(rest[0]), with_model=rest[1] == "model")
    if job == "trial":
        with libraries():
            from holdfast.trainer.trial import trial
        return trial(Path(rest[0]), Path(rest[1]))
    if job == "trials":
        with libraries():
            from holdfast.trainer.trial import host_trials
        return host_trials(Path(rest[0]))
    if job == "evaluate":
        with libraries():
            from holdfast.trainer.evaluate import evaluate
        return evaluate(Path(rest[0]), int(rest[1]))
    if job == "chat":
        with libraries():
            from holdfast.trainer.chat import chat
        return chat(Path(rest[0]))
    if job == "losses":
        with libraries():
            from holdfast.trainer.losses import losses
        return losses(Path(rest[0]))
    if job == "probe":
        from holdfast.trainer.probe import probe

        return probe()
    if job == "probes":
        from holdfast.trainer.probes.host import probe_functions

        return probe_functions(Path(rest[0]), int(rest[1]))
    raise SystemExit(f"unknown job {job!r}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
