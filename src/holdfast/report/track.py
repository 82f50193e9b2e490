"""Pass a run's steps on to trackers, from a process of its own: a tracker that fails or hangs never touches the training.

    python -m holdfast.report.track RUN

It follows steps.jsonl, remembers in tracked.json how far it came, and ends when the run has its summary or its parent is gone.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.files import Json, read_json, write_json
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder

POLL_S = 0.5
_NUMBERS = ("loss", "grad_norm", "lr", "token_accuracy", "peak_bytes")
Log = Callable[[dict[str, float], int], None]
Tracker = tuple[Log, Callable[[], None]]


def numbers(row: Json) -> dict[str, float]:
    """What is tracked of a step."""
    found = {f"train/{name}": float(row[name]) for name in _NUMBERS if row.get(name) is not None}
    return found | {"train/tokens_per_second": row["tokens"] / row["seconds"]} if row["seconds"] else found


def named(variable: str) -> str:
    """Where a tracker's own variable says the run belongs; holdfast where it is not set."""
    return os.environ.get(variable) or "holdfast"


def tensorboard(run: RunFolder, _: Json) -> Tracker:
    """TensorBoard event files under RUN/tensorboard."""
    event_pb2 = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2 = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    writer = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(run.path / "tensorboard"))

    def log(values: dict[str, float], step: int) -> None:
        entries = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=entries)))
        writer.flush()

    return log, writer.close


def wandb(run: RunFolder, config: Json) -> Tracker:
    """Weights & Biases; the run goes on under the same id. WANDB_MODE=offline keeps it on this machine."""
    package = importlib.import_module("wandb")
    session = package.init(
        project=named("WANDB_PROJECT"), name=run.path.name, id=run.id()[:16], resume="allow", config=config, dir=str(run.path)
    )
    return lambda values, step: session.log(values, step=step), session.finish


def mlflow(run: RunFolder, config: Json) -> Tracker:
    """MLflow, at MLFLOW_TRACKING_URI, by default in the run folder."""
    package = importlib.import_module("mlflow")
    package.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{run.path / 'mlflow.db'}"))
    if not os.environ.get("MLFLOW_EXPERIMENT_ID"):
        package.set_experiment(named("MLFLOW_EXPERIMENT_NAME"))
    package.start_run(run_name=run.path.name)
    package.log_params({name: str(value)[:250] for name, value in config["train"].items()})
    return lambda values, step: package.log_metrics(values, step=step), package.end_run


def trackio(run: RunFolder, config: Json) -> Tracker:
    """trackio, on this machine."""
    package = importlib.import_module("trackio")
    package.init(project=named("TRACKIO_PROJECT"), name=run.path.name, config=config)
    return lambda values, step: package.log(values, step=step), package.finish


TRACKERS: dict[str, Callable[[RunFolder, Json], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}


def follow(run: RunFolder, names: list[str], alive: Callable[[], bool]) -> None:
    """Log every committed step and every held-out loss once, until the run is over."""
    config = run.config()
    trackers = [TRACKERS[name](run, config.model_dump(mode="json")) for name in names]
    memory = run.path / "tracked.json"
    known = read_json(memory) or {}
    done, evaluated = known.get("step", 0), known.get("evaluated", 0)
    while True:
        over = run.summary_file.exists() or not alive()
        fresh: list[Any] = [row for row in run.steps() if row["step"] > done]
        for row in fresh:
            for log, _ in trackers:
                log(numbers(row), row["step"])
            done = row["step"]
        held_out = [row for row in read_evaluations(run) if evaluated < row["step"] <= done]
        for row in held_out:
            evaluated = row["step"]
            for log, _ in trackers if row["loss"] is not None else ():
                log({"eval/loss": float(row["loss"]), "eval/step": float(evaluated)}, done)  # wandb takes no step again that is past
        if fresh or held_out:
            write_json(memory, {"step": done} | ({"evaluated": evaluated} if evaluated else {}), durable=False)
        if over:
            break
        time.sleep(POLL_S)
    for _, close in trackers:
        close()


def main(argv: list[str]) -> int:
    run = RunFolder(Path(argv[0]))
    parent = os.getppid()
    follow(run, list(run.config().run.track), lambda: os.getppid() == parent)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
