"""Too little memory: micro-batches become smaller, the same samples are learned from, and what was learned is kept."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from conftest import events, holdfast, lines, settings_with, write_rows
from holdfast.run.sampling.step_table import StepTable
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_at
from holdfast.trainer.common.oom import is_out_of_memory
from holdfast.trainer.distributed.rank import ALONE
from holdfast.trainer.loop import pressure
from holdfast.trainer.loop.pressure import MemoryWatch, cap_memory, rehearse
from holdfast.trainer.model.offload import HostActivations
from support.architectures import TERMS
from support.rounding import but_for_rounding, distance


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.cuda.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("XPU Out Of Memory"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
            True,
        ),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("HIP error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("miopenStatusAllocFailed"), True),
        (RuntimeError("hipErrorOutOfMemory: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: cudaErrorMemoryAllocation"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_known_by_its_type_or_by_every_vendors_words(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) is is_one


def train(config: Path, *more: object) -> dict[str, Any]:
    done = holdfast("train", config, "--run", config.with_suffix(""), "--json", *more)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def adapter(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "adapter" / "adapter_model.safetensors")


OOM = {"name": "too big", "when": {"tokens": [100, 100_000]}, "effect": "oom"}
KILL = {"name": "kill", "when": {"step": 5, "attempt": 1, "phase": "backward"}, "effect": "kill"}


def test_a_micro_batch_that_does_not_fit_is_split_and_the_step_is_the_same(config_of: Callable[..., Path], tmp_path: Path) -> None:
    plain = train(config_of("plain"))
    split = train(config_of("split", faults=[OOM]))
    killed = train(config_of("killed", faults=[OOM, KILL]))
    assert (split["status"], split["attempts"]) == ("finished", 1)
    timeline = read_timeline(tmp_path / "split" / "timeline.jsonl")
    learned = [entry for entry in timeline if "micro_batch_tokens" in entry.settings][1:]
    assert learned and all("out of memory" in entry.reason for entry in learned)
    assert settings_at(timeline, 8).micro_batch_tokens < 100, "the learned limit is kept"
    assert len(events(tmp_path / "split", "setting_changed")) == len(learned)
    rows = [[row["samples"] for row in lines(tmp_path / name / "steps.jsonl")] for name in ("plain", "split", "killed")]
    assert rows[0] == rows[1] == rows[2]
    losses = [[row["loss"] for row in lines(tmp_path / name / "steps.jsonl")] for name in ("plain", "split")]
    assert losses[0] == but_for_rounding(losses[1], TERMS, condition=len(losses[1]))
    ours, theirs = adapter(tmp_path / "split"), adapter(tmp_path / "plain")
    # an element whose gradient is all rounding moves by the whole rate under Adam, with either sign: few do, so wholes are compared
    assert all(distance(ours[name], tensor) < 1e-2 for name, tensor in theirs.items())
    assert killed["attempts"] == 2
    assert killed["artifact_sha256"] == split["artifact_sha256"] != plain["artifact_sha256"]


def test_a_sample_that_alone_does_not_fit_is_named(config_of: Callable[..., Path], assets: SimpleNamespace, tmp_path: Path) -> None:
    config = config_of("named", faults=[{"when": {"sample": "rows.jsonl:7"}, "effect": "oom"}], train={"epochs": 1, "steps": None})
    done = holdfast("train", config, "--run", tmp_path / "named", "--json")
    assert done.returncode == 0, done.stderr
    assert "rows.jsonl:7" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["incidents"][-1]["cause"] == "host_out_of_memory"
    assert "does not fit into memory" in summary["incidents"][-1]["evidence"]
    assert [entry["line"] for entry in summary["quarantined"]] == [7], "and left out, once it was seen that the rest goes through"
    timeline = read_timeline(tmp_path / "named" / "timeline.jsonl")
    assert any(entry.settings.get("checkpointed_layers") for entry in timeline), "checkpointing was not tried"
    first, last = settings_at(timeline, 1), settings_at(timeline, 10_000)
    same = [getattr(last, name) == getattr(first, name) for name in ("micro_batch_tokens", "checkpointed_layers")]
    assert all(same), "what the row taught says nothing about the others"


def long_rows(count: int, words: int) -> list[dict[str, str]]:
    return [{"instruction": f"Count {i}", "input": "", "output": " ".join(str(n % 97) for n in range(words))} for i in range(count)]


def test_a_real_limit_splits_the_largest_micro_batch_before_the_first_step(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", long_rows(24, 300))
    tree: dict[str, Any] = {
        "model": "tiny",
        "data": {"files": str(rows), "held_out": 0.0},
        "train": {"steps": 1, "effective_batch": 24, "max_tokens": 1024, "micro_batch_tokens": 24 * 1024, "threads": 1},
        "evaluate": {"generate": 0},
    }
    for name, limit in (("free", None), ("tight", "1100MiB")):
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(tree | {"train": tree["train"] | {"memory_limit": limit}}))
        assert train(file)["status"] == "finished"
    assert not events(tmp_path / "free", "setting_changed")
    changed = events(tmp_path / "tight", "setting_changed")
    assert changed and all("allocate memory" in event["reason"] or "out of memory" in event["reason"].lower() for event in changed)
    learned = [entry for entry in read_timeline(tmp_path / "tight" / "timeline.jsonl") if "out of memory" in entry.reason]
    assert {entry.from_step for entry in learned} == {1}, "it was not tried before the first step"
    free, tight = (lines(tmp_path / name / "steps.jsonl") for name in ("free", "tight"))
    assert [row["samples"] for row in free] == [row["samples"] for row in tight]
    assert [row["loss"] for row in free] == but_for_rounding([row["loss"] for row in tight], 24 * 1024)
    assert max(row["peak_bytes"] for row in tight) < max(row["peak_bytes"] for row in free)


def test_what_a_cycle_of_objects_holds_is_given_back() -> None:
    """An exception and its frames are such a cycle, and they hold the tensors that did not fit."""

    class Holder:
        def __init__(self) -> None:
            self.itself = self

    holder = weakref.ref(Holder())
    assert holder() is not None
    pressure.release()
    assert holder() is None


def test_the_step_after_this_one_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    training: Any = SimpleNamespace(compute=lambda *arguments: arguments[-1](), prepare=asked.append)
    monkeypatch.setattr(pressure, "within_memory", lambda training, step, work: work())
    pressure.compute_within_memory(training, 7, [1, 2], lambda *_: 1.0)
    assert asked == [8]


def test_the_largest_step_is_tried_first_and_no_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run never meets must not cost it memory: the two longest rows do not come together in these three steps."""
    lengths = np.array([10, 500, 20, 30, 480, 40, 50, 60])
    table = StepTable(np.arange(8), 2, 0)
    steps = [table.samples(step, 6) for step in (1, 2, 3)]
    largest = max(steps, key=lambda rows: lengths[rows].sum())
    assert lengths[largest].sum() < 980
    tried: list[list[int]] = []
    monkeypatch.setattr("holdfast.trainer.loop.pressure.within_memory", lambda training, step, work: work())

    def batches(samples: list[int], budget: int) -> list[Any]:
        assert budget == 400
        return [SimpleNamespace(numbers=(row,), tokens=lengths[row]) for row in samples]

    training: Any = SimpleNamespace(
        task=SimpleNamespace(data=SimpleNamespace(table=table, sizes=lengths), batches=batches),
        job=SimpleNamespace(settings=lambda step: settings_with(samples=6, micro_batch_tokens=400)),
        optimizer=SimpleNamespace(clear=lambda: None),
        compute_alone=lambda step, samples, announce: tried.append(samples),
        rank=ALONE,
    )
    rehearse(training, lambda phase, number, batch: 1.0)
    assert tried == [[max(largest, key=lambda row: lengths[row])]]


class Watched:
    """What MemoryWatch needs of a training state, with a host whose memory is told."""

    def __init__(self, folder: Path) -> None:
        self.device = torch.device("cpu")
        self.longest = 100
        self.rank = ALONE
        self.told: list[tuple[str, str]] = []
        self.job = SimpleNamespace(
            run=SimpleNamespace(timeline_file=folder / "timeline.jsonl"),
            timeline=[Entry(1, settings_with(micro_batch_tokens=400).model_dump())],
            settings=lambda step: settings_at(self.job.timeline, step),
            event=lambda kind, **facts: self.told.append((kind, facts["reason"])),
            amend=lambda entry, alone=False: self.job.timeline.append(add_entry(folder / "timeline.jsonl", entry)),
        )


def test_low_memory_and_growing_swap_make_micro_batches_smaller_until_none_can_be(tmp_path: Path) -> None:
    gib = 1 << 30
    now = {"MemTotal": gib // 2, "MemAvailable": gib // 4, "SwapFree": 4 * gib}
    training: Any = Watched(tmp_path)
    watch = MemoryWatch(training, lambda: now)
    watch.look(16)
    assert training.told == []
    now["SwapFree"] -= gib
    watch.look(17)
    assert training.told == [], "it looks now and then only"
    watch.look(32)
    assert training.job.settings(33).micro_batch_tokens == 200 and training.job.settings(32).micro_batch_tokens == 400
    now["MemAvailable"] = gib // 100
    watch.look(48)
    watch.look(64)
    assert training.job.settings(65).micro_batch_tokens == 100
    assert [kind for kind, _ in training.told] == ["setting_changed", "setting_changed", "memory_low"]
    assert "swap grew by 1024 MiB" in training.told[0][1] and "MiB left" in training.told[1][1]
    assert [entry.from_step for entry in read_timeline(tmp_path / "timeline.jsonl")] == [33, 49]


def test_a_machine_short_of_memory_through_others_leaves_our_micro_batches_alone(tmp_path: Path) -> None:
    training: Any = Watched(tmp_path)
    watch = MemoryWatch(training, lambda: {"MemTotal": 1 << 50, "MemAvailable": 1, "SwapFree": 0})
    watch.look(16)
    assert training.told == [] and training.job.settings(99).micro_batch_tokens == 400


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "total", "shared", "of_device", "of_process"),
    [
        (15 * GIB, 16 * GIB, True, 14.5 / 16, 15 * GIB),  # the device may take all of main memory
        (15 * GIB, 8 * GIB, True, 1.0, 15 * GIB),  # or a part of it
        (15 * GIB, 16 * GIB, False, 15 / 16, None),  # memory of its own: the host's is another matter
        (None, 16 * GIB, True, None, None),
    ],
)
def test_a_limit_holds_for_the_process_too_where_the_device_lives_on_main_memory(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, total: int, shared: bool, of_device: float | None, of_process: int | None
) -> None:
    shares: list[float] = []
    limits: list[int] = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: SimpleNamespace(total_memory=total))
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda share, index: shares.append(share))
    monkeypatch.setattr("resource.setrlimit", lambda kind, pair: limits.append(pair[0]))
    cap_memory(limit, shared)
    assert shares == ([] if of_device is None else [pytest.approx(of_device)])
    assert limits == ([] if of_process is None else [of_process])


def test_what_several_operations_keep_is_copied_to_main_memory_once_and_never_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"MemTotal": 100 * GIB, "MemAvailable": 50 * GIB}
    weights = torch.nn.ModuleList([torch.nn.Linear(64, 64, bias=False) for _ in range(3)])
    keeping = HostActivations(weights, lambda: now)
    x = torch.randn(32, 64, requires_grad=True)

    def work() -> torch.Tensor:
        normal = x * 2.0
        out = sum((layer(normal).sum() for layer in weights), start=torch.zeros(()))
        normal = normal * 3.0
        return out + (normal * normal).sum()

    plain = torch.autograd.grad(work(), [x, *weights.parameters()])
    with keeping():
        loss = work()
    assert keeping.kept == 2 * x.nbytes, "the input of three layers, and what was multiplied with itself"
    assert all(torch.equal(one, other) for one, other in zip(plain, torch.autograd.grad(loss, [x, *weights.parameters()]), strict=True))
    now["MemAvailable"] = 5 * GIB
    with pytest.raises(MemoryError, match="5,120 of 102,400 MiB left"), keeping():
        work()
