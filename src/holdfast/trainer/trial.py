"""Replay one step of a run in a fresh process, some of it or all, as it was or with changed settings. Writes only its outcome."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from holdfast.core.errors import BLOCKED, DONE
from holdfast.core.files import Json, read_json, write_json
from holdfast.core.memoryfile import MemoryFile, Snapshot
from holdfast.core.run import RunFolder
from holdfast.trainer.announce import Announcer
from holdfast.trainer.job import open_job
from holdfast.trainer.restore import find_state
from holdfast.trainer.setup import Bench, build
from holdfast.trainer.step import Announce, compute_gradients, gradients_sha256, update


def trial(path: Path, folder: Path) -> int:
    """Do what `folder`/request.json asks for and leave `folder`/outcome.json."""
    request = read_json(folder / "request.json") or {}
    run = RunFolder(path)
    job = open_job(run, request["attempt"], folder, request)
    step: int = request["step"]
    job.timeline.append({"from_step": 1, "settings": {"deterministic": True}, "reason": "a trial"})
    places = [Path(place) for place in request["memory_places"]]
    found = find_state(run, places, limit=step - 1)
    bench = build(job, job.settings(found.snapshot.step + 1 if found.snapshot else 1))
    memory = next((memory for place in places if (memory := MemoryFile.open(place))), None)
    announcer = Announcer(job, memory, publish=False)
    at = 0
    if found.snapshot:
        bench.restore(found.snapshot)
        at = found.snapshot.step
    for number in range(at + 1, step):
        if not _advance(bench, number, announcer.of_step(number)):
            write_json(folder / "outcome.json", {"ending": "unreachable", "reason": f"step {number} before it is not finite"})
            return BLOCKED
    if request["settings"]:
        bench = _rebuilt(bench, request["settings"], step)
    outcome = _replay(bench, step, request["samples"] or bench.samples(step), announcer.of_step(step))
    write_json(folder / "outcome.json", outcome | {"recomputed": step - 1 - at, "state": found.place})
    return DONE


def _advance(bench: Bench, step: int, announce: Announce) -> bool:
    """Compute a step between the state found and the step asked for, exactly as the run did."""
    computed = compute_gradients(
        bench.task, bench.optimizer, step, bench.samples(step), bench.job.settings(step)["micro_batch_tokens"], announce
    )
    if computed.finite:
        update(bench.optimizer, computed, bench.learning_rate(step), bench.job.config.train.max_grad_norm)
    return computed.finite


def _rebuilt(bench: Bench, changes: Json, step: int) -> Bench:
    """The same state under other settings: the model is loaded again, because attention and dtype are fixed at loading."""
    job = bench.job
    state = Snapshot(step - 1, 0, {}, bench.artifact.to_bytes(), bench.state.to_bytes())
    job.timeline.append({"from_step": step, "settings": changes, "reason": "trial"})
    fresh = build(job, job.settings(step))
    fresh.restore(state)
    return fresh


def _replay(bench: Bench, step: int, samples: list[int], announce: Announce) -> Json:
    began = time.perf_counter()
    settings = bench.job.settings(step)
    computed = compute_gradients(bench.task, bench.optimizer, step, samples, settings["micro_batch_tokens"], announce)
    hashed = gradients_sha256(bench.optimizer)
    weights = None
    if computed.finite:
        update(bench.optimizer, computed, bench.learning_rate(step), bench.job.config.train.max_grad_norm)
        weights = hashlib.sha256(bench.artifact.to_bytes()).hexdigest()
    return {
        "ending": "finished",
        "finite": computed.finite,
        "loss": computed.loss,
        "grad_norm": computed.grad_norm,
        "gradients_sha256": hashed,
        "weights_sha256": weights,
        "samples": samples,
        "tokens": computed.tokens,
        "labels": computed.labels,
        "seconds": round(time.perf_counter() - began, 4),
    }
