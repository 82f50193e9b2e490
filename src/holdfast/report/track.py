"""Pass a run's steps on to trackers, from a process of its own: a tracker that fails or hangs never touches the training.

    python -m holdfast.report.track RUN NAME

It follows steps.jsonl, remembers in tracked-NAME.json how far it came, and ends when the run has its summary or its parent is gone.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.base.files import Json, Tail, read_json, write_json
from holdfast.machine.readings.keep import newest
from holdfast.machine.readings.words import figures
from holdfast.run.evaluations import read_evaluations
from holdfast.run.folder import RunFolder

POLL_S = 0.5
_OF_ALL = "tracked.json"  # of runs whose trackers had one process together
_RUN_TAG = "holdfast_run"  # of a run in MLflow, with the id of ours
_LONGEST_TAG = 5000  # characters that MLflow takes
_NUMBERS = ("loss", "grad_norm", "lr", "token_accuracy", "peak_bytes")
Log = Callable[[dict[str, float], int], None]
Note = Callable[[str, int], None]  # of what happened, in words
TakeBack = Callable[[Json, bool], None]


def _keep_both(rollback: Json, new: bool) -> None:
    """Do nothing: the tracker keeps what was logged of steps that were taken back, beside what is logged of them again."""


class Tracker(NamedTuple):
    """How steps and incidents reach a tracker, and how it is closed.

    back: is called with each `rolled_back` event of the run, before what is trained anew is logged; with False where a process of this
    tracker before this one was told of it.
    """

    log: Log
    note: Note
    close: Callable[[], None]
    back: TakeBack = _keep_both


def numbers(row: Json) -> dict[str, float]:
    """Return what is tracked of a step, as numbers by name."""
    found = {f"train/{name}": float(row[name]) for name in _NUMBERS if row.get(name) is not None}
    return found | {"train/tokens_per_second": row["tokens"] / row["seconds"]} if row["seconds"] else found


def memory_of(tracker: str) -> str:
    """Return the name of the file in which a tracker's process remembers how far it came."""
    return f"tracked-{tracker}.json"


def named(variable: str) -> str:
    """Return where a tracker's own variable says the run belongs; holdfast where it is not set."""
    return os.environ.get(variable) or "holdfast"


def tensorboard(run: RunFolder, _: Json) -> Tracker:
    """Log to TensorBoard event files under RUN/tensorboard. What was logged of steps that are taken back is purged by its readers."""
    event_pb2 = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summary_pb2 = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    writer = importlib.import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(str(run.path / "tensorboard"))

    def log(values: dict[str, float], step: int) -> None:
        entries = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=entries)))
        writer.flush()

    def note(text: str, step: int) -> None:
        value = writing(text)
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary_pb2.Summary(value=[value])))

    def back(rollback: Json, new: bool) -> None:
        if new:
            begins = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            writer.add_event(event_pb2.Event(wall_time=time.time(), step=rollback["to"] + 1, session_log=begins))

    def writing(text: str) -> Any:
        tensor_pb2 = importlib.import_module("tensorboard.compat.proto.tensor_pb2")
        types_pb2 = importlib.import_module("tensorboard.compat.proto.types_pb2")
        tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING, string_val=[text.encode()])
        about = summary_pb2.SummaryMetadata(plugin_data=summary_pb2.SummaryMetadata.PluginData(plugin_name="text"))
        return summary_pb2.Summary.Value(tag="incidents", metadata=about, tensor=tensor)

    return Tracker(log, note, writer.close, back)


def wandb(run: RunFolder, config: Json) -> Tracker:
    """Log to Weights & Biases; the run goes on under the same id. WANDB_MODE=offline keeps it on this machine.

    W&B takes nothing of a step that is past, so its own steps count on over a rollback; figures are drawn over `train/step`.
    """
    package = importlib.import_module("wandb")
    session = package.init(
        project=named("WANDB_PROJECT"), name=run.path.name, id=run.id()[:16], resume="allow", config=config, dir=str(run.path)
    )
    session.define_metric("train/step")
    session.define_metric("*", step_metric="train/step", step_sync=True)
    taken_back = 0  # steps in all

    def log(values: dict[str, float], step: int) -> None:
        session.log({**values, "train/step": step}, step=step + taken_back)

    def back(rollback: Json, new: bool) -> None:
        nonlocal taken_back
        taken_back += rollback["step"] - rollback["to"]

    return Tracker(log, lambda text, step: session.alert(title="incident", text=f"step {step}: {text}", level="WARN"), session.finish, back)


def mlflow(run: RunFolder, config: Json) -> Tracker:
    """Log to MLflow, at MLFLOW_TRACKING_URI, by default in the run folder; a run that was begun there is gone on with."""
    package = importlib.import_module("mlflow")
    package.set_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{run.path / 'mlflow.db'}"))
    if not os.environ.get("MLFLOW_EXPERIMENT_ID"):
        package.set_experiment(named("MLFLOW_EXPERIMENT_NAME"))
    begun = package.search_runs(filter_string=f"tags.{_RUN_TAG} = '{run.id()}'", max_results=1, output_format="list")
    if begun:
        package.start_run(run_id=begun[0].info.run_id)
    else:
        package.start_run(run_name=run.path.name, tags={_RUN_TAG: run.id()})
        package.log_params({name: str(value)[:250] for name, value in config["train"].items()})  # which MLflow lets nobody change
    return Tracker(
        lambda values, step: package.log_metrics(values, step=step),
        lambda text, step: package.set_tag(f"incident at step {step}", text[:_LONGEST_TAG]),
        package.end_run,
    )


def trackio(run: RunFolder, config: Json) -> Tracker:
    """Log to trackio, on this machine; a run that was begun there is gone on with. It knows runs by name alone: another's may be alike."""
    package = importlib.import_module("trackio")
    begun = any((run.path / memory).exists() for memory in (_OF_ALL, memory_of("trackio")))
    package.init(project=named("TRACKIO_PROJECT"), name=run.path.name, config=config, resume="allow" if begun else "never")
    return Tracker(
        lambda values, step: package.log(values, step=step),
        lambda text, step: package.alert(title="incident", text=f"step {step}: {text}", level=package.AlertLevel.WARN),
        package.finish,
    )


TRACKERS: dict[str, Callable[[RunFolder, Json], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
    "trackio": trackio,
}


def follow(run: RunFolder, names: list[str], alive: Callable[[], bool], memory_name: str = _OF_ALL) -> None:
    """Log every committed step, held-out loss, reading of the machine and incident once, until the run is over."""
    config = run.config()
    trackers = [TRACKERS[name](run, config.model_dump(mode="json")) for name in names]
    memory = run.path / memory_name
    known = read_json(memory) or read_json(run.path / _OF_ALL) or {}
    known.pop("closed", None)
    write_json(memory, known, durable=False)  # which tells that they are open
    steps, journal = Tail(run.steps_file, key="step"), Tail(run.events_file, key="event")
    while True:
        over = run.summary_file.exists() or not alive()
        now = _pass_on(run, trackers, known, steps, journal)
        if over:
            now = _final_losses(run, trackers, now)
        if now != known:
            write_json(memory, now, durable=False)
            known = now
        if over:
            break
        time.sleep(POLL_S)
    for tracker in trackers:
        tracker.close()
    write_json(memory, known | {"closed": True}, durable=False)


def _pass_on(run: RunFolder, trackers: list[Tracker], known: Json, steps: Tail, journal: Tail) -> Json:
    """Send what is new since `known`, and what took the place of steps that were taken back; return what is known then."""
    now, events = dict(known), journal.new()[0]
    for event in events:
        if event["event"] != "rolled_back":
            continue
        new = event["time"] > now.get("rolled_back", 0.0)
        for tracker in trackers:
            tracker.back(event, new)
        if new:
            now |= {"rolled_back": event["time"], **{kind: min(now.get(kind, 0), event["to"]) for kind in ("step", "evaluated")}}
    rows = [row for row in steps.new()[0] if row["step"] > now.get("step", 0)]
    done = rows[-1]["step"] if rows else now.get("step", 0)
    held_out = [row for row in read_evaluations(run) if now.get("evaluated", 0) < row["step"] <= done]
    # in the order of steps: wandb takes nothing of one that is past, and a held-out loss is on the disk before the next step is
    sent = [(row["step"], "step", numbers(row)) for row in rows]
    sent += [(row["step"], "evaluated", {"eval/loss": row["loss"], "eval/step": float(row["step"])}) for row in held_out]
    for step, kind, values in sorted(sent, key=lambda one: one[0]):
        for tracker in trackers if values.get("eval/loss", 0) is not None else ():
            tracker.log(values, step)
        now[kind] = step
    for reading in [one for one in newest(run.readings_file) if one["time"] > now.get("read", 0.0)]:
        now["read"] = reading["time"]
        for tracker in trackers:
            tracker.log({f"machine/{name}": value for name, value in figures(reading).items()}, done)
    for event in events:
        if event["event"] == "attempt_ended" and "decision" in event and event["time"] > now.get("incident", 0.0):
            now["incident"], now["incidents"] = event["time"], now.get("incidents", 0) + 1
            for tracker in trackers:
                tracker.note(incident(event), done)
                tracker.log({"incidents": float(now["incidents"])}, done)
    return now


def incident(event: Json) -> str:
    """Describe an end of an attempt that the run went on from."""
    cause = (event.get("diagnosis") or {}).get("cause")
    named = f" ({cause.replace('_', ' ')})" if cause and cause != "unknown" else ""
    return f"{event['decision'].get('reason') or 'an attempt ended'}{named}"


def _final_losses(run: RunFolder, trackers: list[Tracker], known: Json) -> Json:
    """Send what base and tuned model lose on the held-out rows, once for each end: a run that is extended has another one."""
    summary, final = read_json(run.summary_file) or {}, known.get("final")
    loss, reached = summary.get("loss") or {}, summary.get("steps", known.get("step", 0))
    values = {f"eval/{name}": float(loss[f"eval_{name}"]) for name in ("base", "tuned") if loss.get(f"eval_{name}") is not None}
    if not values or (type(final) is int and final == reached):
        return known
    for tracker in trackers:
        tracker.log(values, known.get("step", 0))
    return known | {"final": reached}


def main(argv: list[str]) -> int:
    run = RunFolder(Path(argv[0]))
    parent = os.getppid()
    follow(run, [argv[1]], lambda: os.getppid() == parent, memory_of(argv[1]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
