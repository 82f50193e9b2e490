"""Train a few steps from a known state under a request's changes, and say what came: losses, gradients, bits, seconds, bytes.

A course may be held against another one: `against` names its folder, whose gradients and layers' outputs are compared step by step.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from holdfast.base.files import Json, write_bytes, write_json
from holdfast.run.snapshots.memory_file import Snapshot
from holdfast.trainer.common.device import peak_since
from holdfast.trainer.jobs.laboratory.rows import samples_of
from holdfast.trainer.loop.announce import Announcer
from holdfast.trainer.step.step import Gradients, gradients_sha256, update
from holdfast.trainer.step.training_state import TrainingState

_APART = 1e-30


def course(training: TrainingState, request: Json, folder: Path) -> Json:
    """Train `steps` steps. still: compute gradients and move nothing; goal: end at that loss; most_seconds: begin no step after it.

    rate: of every step, in place of the schedule. from_state, leave_state: folders of a state. keep: gradients and layers, to compare.
    """
    if request.get("from_state"):
        at = Path(request["from_state"])
        training.restore(Snapshot(0, 0, {}, (at / "artifact.bin").read_bytes(), (at / "state.bin").read_bytes()))
    first = {name: p.detach().float().clone() for name, p in training.optimizer.parameters.items()}
    announcer, rows = Announcer(training.job, None, publish=False), []
    began, numbers = time.perf_counter(), range(request.get("first", 1), request.get("first", 1) + request["steps"])
    for number in numbers:
        rows.append(_step(training, request, folder, announcer, number))
        write_json(folder / "reached.json", {"step": number}, durable=False)
        if not rows[-1]["finite"] or _over(request, rows, time.perf_counter() - began):
            break
    if request.get("leave_state"):
        write_bytes(folder / "artifact.bin", training.artifact.to_bytes())
        write_bytes(folder / "state.bin", training.state.to_bytes())
    moved = math.sqrt(sum(float((p.detach().float() - first[name]).square().sum()) for name, p in training.optimizer.parameters.items()))
    return {
        "rows": rows,
        "finite": all(row["finite"] for row in rows),
        "moved": moved,
        "size": sum(p.numel() for p in training.optimizer.parameters.values()),
        "weights_sha256": hashlib.sha256(training.artifact.to_bytes()).hexdigest(),
        "peak_bytes": peak_since(training.device, bool(request.get("peak_forgotten"))),
        "settings": training.settings.as_json(),
    }


def _over(request: Json, rows: list[Json], seconds: float) -> bool:
    goal, most = request.get("goal"), request.get("most_seconds")
    reached = goal is not None and all(row["loss"] <= goal for row in rows[-1:])
    return reached or (most is not None and seconds > most and len(rows) >= request.get("least_steps", 1))


def _step(training: TrainingState, request: Json, folder: Path, announcer: Announcer, number: int) -> Json:
    """Compute one step; return its row, as in steps.jsonl, with its bits and, where something is compared, how far apart it is."""
    samples = samples_of(training, request, number)
    compares = bool(request.get("keep") or request.get("against"))
    began, used, passes = time.perf_counter(), time.process_time(), announcer.count
    with _layers(training.task.model) if compares else _nothing() as outputs:
        computed = training.compute(number, samples, announcer.of_step(number))
    row = _row(training, number, samples, computed) | {"micro_batches": announcer.count - passes}
    if compares:
        gradients = _gradients(training)
        if request.get("keep"):
            save_file(gradients, folder / f"gradients-{number}.safetensors")
            save_file({f"{at:05d} {name}": one for at, (name, one) in enumerate(outputs)}, folder / f"layers-{number}.safetensors")
        if request.get("against"):
            row |= _apart(gradients, outputs, Path(request["against"]), number)
    if request.get("bits"):
        row["gradients_sha256"] = gradients_sha256(training.optimizer)
    if not request.get("still") and computed.finite:
        _apply(training, number, computed, request.get("rate"))
    return row | {"seconds": round(time.perf_counter() - began, 6), "cpu_seconds": round(time.process_time() - used, 6)}


def _row(training: TrainingState, number: int, samples: list[int], computed: Gradients) -> Json:
    means = {name: round(total / max(1, computed.labels), 6) for name, total in computed.measured.items()}
    return {
        "step": number,
        "samples": samples[:64],
        "loss": computed.loss if math.isfinite(computed.loss) else None,
        "grad_norm": computed.grad_norm if math.isfinite(computed.grad_norm) else None,
        "lr": training.learning_rate(number),
        "tokens": computed.tokens,
        "labels": computed.labels,
        "finite": computed.finite,
        "skipped": computed.skipped,
        **means,
    }


def _apply(training: TrainingState, number: int, computed: Gradients, rate: float | None) -> None:
    """Move the weights as a run does; at `rate`, if one is given, in place of the schedule's."""
    if rate is None:
        training.apply(number, computed)
        return
    if not computed.skipped:
        training.task.step_hooks.before()
        update(training.optimizer, computed, rate, training.job.config.train.max_grad_norm)
    training.task.step_hooks.after(number, training.job.settings(number).steps)
    if training.scale:
        training.scale.follow(computed.skipped)


def _gradients(training: TrainingState) -> dict[str, Tensor]:
    found = sorted(training.optimizer.parameters.items())
    return {name: p.grad.detach().float().cpu().contiguous().clone() for name, p in found if p.grad is not None}


def _apart(gradients: dict[str, Tensor], outputs: list[tuple[str, Tensor]], other: Path, number: int) -> Json:
    """Measure how far gradients and layers' outputs are from those of another course: shares of the other's norm.

    scale: what the other's gradient would have to be multiplied by to be nearest; a kernel that is wrong by a factor shows here.
    """
    theirs = load_file(other / f"gradients-{number}.safetensors")
    norm = math.sqrt(sum(float(one.square().sum()) for one in theirs.values())) + _APART
    zero = torch.zeros(())  # what only one of the two has a gradient of
    both = [(name, gradients.get(name, zero), theirs.get(name, zero)) for name in {**theirs, **gradients}]
    gap = math.sqrt(sum(float((mine - one).square().sum()) for _, mine, one in both))
    inner = sum(float((mine * one).sum()) for _, mine, one in both)
    worst = max(both, key=lambda one: _gap(one[1], one[2], norm), default=(None,))[0]
    layers = load_file(other / f"layers-{number}.safetensors")
    gaps = []
    for (name, mine), their in zip(outputs, (layers[key] for key in sorted(layers)), strict=False):
        if mine.shape == their.shape:
            gaps.append({"layer": name, "gap": _number(_gap(mine, their, float(their.norm()) + _APART)), "finite": _finite(mine)})
    return {"gradient_gap": _number(gap / norm), "scale": _number(inner / norm**2), "worst": worst, "layers": gaps}


def _gap(one: Tensor, other: Tensor, norm: float) -> float:
    return float((one - other).norm()) / norm


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


@contextmanager
def _layers(model: nn.Module) -> Iterator[list[tuple[str, Tensor]]]:
    """Record the first output of each layer within the context, for the first micro-batch: (name, a few numbers of it in fp32)."""
    found: list[tuple[str, Tensor]] = []
    seen: set[str] = set()

    def keep(name: str, made: Any) -> None:
        output = made[0] if isinstance(made, tuple | list) else made
        if isinstance(output, Tensor) and output.is_floating_point() and name not in seen:
            seen.add(name)
            flat = output.detach().float().flatten()
            found.append((name, flat[:: max(1, flat.numel() // 8192)].cpu().clone()))

    handles = [
        module.register_forward_hook(lambda _module, _given, made, name=name: keep(name, made)) for name, module in layer_modules(model)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def layer_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the model's embeddings and the members of its longest list of layers, in order."""
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) > 0]
    embeddings = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Embedding)]
    found: list[tuple[str, nn.Module]] = list(embeddings[:1])
    if lists:
        name, longest = max(lists, key=lambda one: len(one[1]))
        found += [(f"{name}.{at}", layer) for at, layer in enumerate(longest)]
    return found


@contextmanager
def _nothing() -> Iterator[list[tuple[str, Tensor]]]:
    yield []
