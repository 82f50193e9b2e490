"""The training loop of one attempt: restore, step, gate, snapshot, journal, until done or asked to stop. Judges no failure."""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from holdfast.base.files import Json, read_json
from holdfast.base.units import loss_and_norm
from holdfast.config.settings import PartialSettings
from holdfast.machine import clock
from holdfast.machine.machine_file import training_devices
from holdfast.run.timeline import Entry, settings_of_process
from holdfast.trainer.common.device import prepare_torch, release
from holdfast.trainer.common.job import Job
from holdfast.trainer.common.oom import tag_out_of_memory
from holdfast.trainer.common.refuse import Refusal, refuse_broken_weights
from holdfast.trainer.common.waiting import WAITING
from holdfast.trainer.distributed.group import Group
from holdfast.trainer.distributed.rank import ALONE, Rank
from holdfast.trainer.distributed.rendezvous import store_of
from holdfast.trainer.distributed.same_setup import refuse_unlike
from holdfast.trainer.loop.announce import Announcer
from holdfast.trainer.loop.ends import end, end_of
from holdfast.trainer.loop.goals import goals_of
from holdfast.trainer.loop.held_out import HeldOut
from holdfast.trainer.loop.pressure import MemoryWatch, cap_memory, compute_within_memory, once_more, within_memory
from holdfast.trainer.loop.rehearse_parts import rehearse_parts
from holdfast.trainer.loop.spot_check import spot_check
from holdfast.trainer.loop.stragglers import SlowRanks
from holdfast.trainer.state.following import SnapshotFollower
from holdfast.trainer.state.restore import RestorePoint
from holdfast.trainer.state.saving import CheckpointSchedule
from holdfast.trainer.state.snapshot import Snapshots
from holdfast.trainer.state.start import restored, state_of
from holdfast.trainer.step.step import Gradients
from holdfast.trainer.step.training_state import TrainingState, build
from holdfast.trainer.tasks import task_of


def train(job: Job, ready: TrainingState | None = None) -> int:
    """Run one attempt; return the exit code. What the exit code cannot say is in the attempt's result.json.

    `ready` was built before the attempt began; it serves where the settings are still those it was built for.
    """
    places = [Path(place) for place in job.orders["memory_places"]]
    try:
        rank = _join(job)
        found = state_of(job, rank, places)
        for passed in found.passed_over:
            job.event("checkpoint_passed_over", **passed)
        cap_memory(job.settings(1).memory_limit_bytes, shared=_on_main_memory(job))
        if found.snapshot is None:
            for kind, facts in task_of(job.config).look_first(job.run, job.config):
                job.event(kind, **facts)
            _settle(job, rank)
        settings = settings_of_process(job.timeline)
        if ready is not None and ready.settings == settings and not (job.config.cuts_trained and rank.size > 1):
            training = replace(ready, job=job)
        else:
            training = once_more("the model", lambda: build(job, settings), rank)
            refuse_broken_weights(training.task.model, job.config.model)
        step = found.snapshot.step + 1 if found.snapshot else 1
        unproven = found.snapshot is None or _with_other_libraries(job, rank)
        while unproven and not _proven(training, rank, step):
            del training  # before there is another; a model's parts hold each other, so a device keeps it until it is looked for
            ready = None
            release()
            training = once_more("the model", lambda: build(job, job.settings(step)), rank)
        training.rank = rank
        for kind, facts in training.task.remarks(fresh=found.snapshot is None):
            job.event(kind, **facts)
        snapshots, found = restored(training, places, found)
        WAITING.memory = snapshots.memory
        with tag_out_of_memory(None, "what is no micro-batch (an update, a snapshot)"):
            return _run(training, snapshots, found)
    except Exception as error:
        if (code := end_of(job, error)) is None:
            raise
        return code


def _join(job: Job) -> Rank:
    """Join the ranks that train the run. Raises Refusal where they are not alike, PeerLost where they do not meet."""
    settings, size = settings_of_process(job.timeline), job.orders.get("ranks", 1)
    if size == 1:
        return ALONE
    prepare_torch(settings)
    group = Group(job.rank, size, store_of(job.rank, job.number), lambda: job.stopping.heard, together=job.config.train.fsdp)
    job.stopping.known = lambda: group.stopping
    refuse_unlike(group, job, settings)
    return group


def _settle(job: Job, rank: Rank) -> None:
    """Put on the timeline what the task finds better here, before anything is built. The first rank's times decide for all."""
    changes, reason = task_of(job.config).settle(job.config, job.settings(1))
    decided = rank.exchange({"changes": changes, "reason": reason})[0]
    _change(job, decided["changes"], decided["reason"])


def _with_other_libraries(job: Job, rank: Rank) -> bool:
    """Return whether libraries have changed since a trainer of the run last began its steps."""
    kinds = [event["event"] for event in job.run.events() if event["event"] in ("restored", "libraries_changed")] if rank.first else []
    return bool(rank.exchange({"changed": kinds[-1:] == ["libraries_changed"]})[0]["changed"])


def _proven(training: TrainingState, rank: Rank, step: int = 1) -> bool:
    """Prove that the training state computes what its settings ask for.

    Returns False where it does not: the timeline then has the change, for another training state. step: the first one it will compute, from
    which on such a change holds. A proof that fails is repeated by all ranks, because what does not come again is no fact about the model.
    The second one counts.
    """
    decided = _proof(training, rank)
    if decided["changes"]:
        first, decided = decided, _proof(training, rank)
        if decided["changes"] != first["changes"]:
            training.job.event("computes_differently", first=first["reason"], again=decided["reason"])
    _change(training.job, decided["changes"], decided["reason"], step)
    return not decided["changes"]


def _proof(training: TrainingState, rank: Rank) -> Json:
    """Prove the layout on all ranks; return {changes, reason} of the first that finds something to change, else empty changes."""
    changes, reason = once_more("the trial of the model's layout", training.task.prove, rank)
    told = rank.exchange({"changes": changes, "reason": reason})
    return next((one for one in told if one["changes"]), told[0])


def _change(job: Job, changes: PartialSettings, reason: str, step: int = 1) -> None:
    """Put what a start found on the timeline, from the first step that will be computed on."""
    if changes:
        job.amend(Entry(step, changes, reason))
        what = ", ".join(f"{name} -> {value}" for name, value in changes.items())
        job.event("setting_changed", what=what, reason=reason)


def _on_main_memory(job: Job) -> bool:
    """Return whether the device has no memory of its own."""
    gpus = training_devices(read_json(job.run.machine_file) or {})
    return bool(gpus and gpus[0].get("integrated"))


def _run(training: TrainingState, snapshots: Snapshots | SnapshotFollower, found: RestorePoint) -> int:
    job = training.job
    step = 0
    if found.snapshot:
        step = found.snapshot.step
    job.event("restored", step=step, state=found.place, **training.task.facts)
    announcer = Announcer(job, snapshots.memory, publish=True)
    saving = CheckpointSchedule(job, snapshots.memory, step)
    if step == 0:
        snapshots.memory.beat({"attempt": job.number, "step": 1, "phase": "rehearsal", "time": clock.now()})
        rehearse_parts(training, announcer.rehearsal)
    watch, slow = MemoryWatch(training), SlowRanks(job.event)
    every = _spot_checks(training)
    held_out, goals = HeldOut(training, snapshots), goals_of(training, step)
    over = held_out.over(step)
    while not over and not job.stopping.asked:
        step += 1
        began = time.perf_counter()
        samples, computed = training.samples(step), None
        if samples:  # else all of them are in quarantine, and the step moves nothing
            training.task.refuse(samples, step)
            if every is not None and step % every == 0:
                within_memory(training, step, partial(spot_check, training, step, samples, announcer.of_step(step)))
            computed = compute_within_memory(training, step, samples, announcer.of_step(step))
            if computed.finite:
                job.point("optimizer", step)
                snapshots.wait_until_copied()
            if not training.apply(step, computed):
                return _nonfinite(training, snapshots, step, computed)
        row = _row(training, step, computed, time.perf_counter() - began)
        goals.look(row)
        last = job.settings(step + 1).steps
        due = saving.due(step, row["seconds"]) and snapshots.writer_is_free(step, wait=job.config.save.every is not None)
        durable = snapshots.agreed(due or step == last or job.stopping.asked)
        job.leave_another_run()
        snapshots.commit(step, row, durable, needed=held_out.due(step))
        if durable:
            saving.asked(step)
        snapshots.memory.beat({"attempt": job.number, "step": step, "phase": "committed", "time": clock.now()})
        watch.look(step)
        slow.look(step, computed.seconds if computed else ())
        over = held_out.over(step)
    snapshots.end()
    snapshots.pin_newest()
    return end(job, "finished" if over else "interrupted", step=step)


def _spot_checks(training: TrainingState) -> int | None:
    """Return the number of steps between spot checks, None for no checks. Raises Refusal where repeated computations differ."""
    every = training.job.config.train.spot_check
    if every is not None and not training.settings.deterministic and training.rank.size > 1:
        text = "train.spot_check compares bits, and on a GPU without train.deterministic those of two computations differ"
        raise Refusal(
            "launch_misconfigured", text, "add train.deterministic: true, or leave train.spot_check out; start afresh with --run DIR"
        )
    return every


def _row(training: TrainingState, step: int, computed: Gradients | None, seconds: float) -> Json:
    return {
        "step": step,
        "loss": computed.loss if computed else None,
        "grad_norm": computed.grad_norm if computed else None,
        "lr": training.learning_rate(step),
        "tokens": computed.tokens if computed else 0,
        "labels": computed.labels if computed else 0,
        **_means(training, computed),
        **({"loss_scale": computed.scale, "skipped": computed.skipped} if computed and training.scale else {}),
        "seconds": round(seconds, 6),
        "peak_bytes": peak_bytes(training.device),
        "samples": training.samples(step),
        "attempt": training.job.number,
        "time": round(clock.now(), 3),
        **({"rank_seconds": [round(one, 6) for one in computed.seconds]} if computed and training.rank.size > 1 else {}),
    }


def _means(training: TrainingState, computed: Gradients | None) -> Json:
    """Average what the task measures over labels. `token_accuracy` is always a key of a row."""
    means = {name: round(computed.measured[name] / computed.labels, 6) if computed else None for name in training.task.measures}
    return {"token_accuracy": None} | means


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory so far in bytes: of the device's allocator, or of this process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _nonfinite(training: TrainingState, snapshots: Snapshots | SnapshotFollower, step: int, computed: Gradients) -> int:
    samples = training.samples(step)
    numbers = loss_and_norm(computed.loss, computed.grad_norm)
    text = f"step {step} is not finite: {numbers}; the weights were not touched"
    training.job.say(f"holdfast: {text}")
    snapshots.end()
    snapshots.pin_newest()
    facts = {"loss": str(computed.loss), "grad_norm": str(computed.grad_norm), "samples": samples}
    return end(training.job, "nonfinite", step=step, **facts)
