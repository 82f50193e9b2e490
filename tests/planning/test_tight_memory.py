"""Main memory that is tight: a trainer gives back what it frees, a plan counts what it then holds, and the weights are the same."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from conftest import holdfast, settings_with
from holdfast.base.files import write_json
from holdfast.machine.heap import MAPPED_FROM, TIGHT, heap_environment
from holdfast.planning.memory.demand import Demand
from holdfast.planning.memory.fit import Room
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Params
from holdfast.run.timeline import Entry, add_entry
from holdfast.supervision.launch import trainer_launch
from holdfast.trainer.traced.ledger import Ledger, Log
from holdfast.trainer.traced.replay import MappedHeap, held

GIB = 1 << 30
EDGE = int(1.5 * GIB / TIGHT)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the user says nothing of the allocator."""
    for name in os.environ:
        if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD"):
            monkeypatch.delenv(name)


def launched(folder: Path, capacity: int | None, **settings: Any) -> dict[str, str | None]:
    """The environment of a trainer that was planned to need 2 GiB, 0.5 of them gaps."""
    run = RunFolder(folder)
    folder.mkdir(exist_ok=True)
    plan = {"fits": True, "peak_bytes": 2 * GIB, "capacity_bytes": capacity, "bytes": {"weights": 3 * GIB // 2, "allocator": GIB // 2}}
    course = {"params": {"total": 1, "trainable": 1}, "precision": "fp32", "micro_batch_tokens": 1, "checkpointed_layers": 0}
    rows = {"train": 1, "held_out": 0, "per_epoch": 1}
    told = {"accumulation": 1, "steps": 1, "samples": 1, "rows": rows, "data_sha256": "0"}
    write_json(run.plan_file, plan | course | told)
    add_entry(run.timeline_file, Entry(1, settings_with(**{"device": "cpu"} | settings).model_dump(), "the plan"))
    return trainer_launch(run).env


@pytest.mark.parametrize(
    ("capacity", "settings", "tight"),
    [
        (EDGE - 1, {}, True),
        (EDGE + 1, {}, False),  # gaps do not count: where it is tight there are none
        (None, {}, False),
        (64 * GIB, {"memory_limit_bytes": EDGE - 1}, True),
        (EDGE - 1, {"device": "cuda"}, False),
    ],
)
def test_freed_blocks_go_back_where_memory_is_tight(capacity: int | None, settings: dict[str, Any], tight: bool, tmp_path: Path) -> None:
    wanted = heap_environment(tight)
    assert launched(tmp_path, capacity, **settings).items() >= wanted.items() and wanted != heap_environment(not tight)


def test_what_the_user_says_of_the_allocator_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    env = launched(tmp_path / "a", GIB)
    assert "GLIBC_TUNABLES" not in env and env["MALLOC_MMAP_THRESHOLD_"] == str(MAPPED_FROM)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert "MALLOC_MMAP_THRESHOLD_" not in launched(tmp_path / "b", GIB)


@pytest.mark.parametrize(("capacity", "gaps"), [(None, 300), (10_000, 300), (1300, 10)])
def test_a_plan_counts_gaps_only_where_there_is_room_for_them(capacity: int | None, gaps: int) -> None:
    kinds = dict.fromkeys(("adapter", "gradients", "optimizer", "activations", "logits", "workspace"), 0.0) | {"weights": 1000.0}
    about: dict[str, Any] = {"phase": "forward", "params": Params(total=1, trainable=1), "layers": 1, "flops": 1.0}
    demand = Demand(bytes=kinds, building=0, held=1300, mapped=1010, **about)
    assert Room(capacity, 0, 100, heap=True).peak(demand) == 1100 + gaps
    assert Room(capacity, 0, 100, heap=False).peak(demand) == 1400, "a card's allocator is another"


SIZES = [1000, 5_000_000, 4096 * 700 - 120, 4096 * 700 - 119, 4096 * 700]
_BLOCKS = """
import ctypes, sys
libc = ctypes.CDLL(None)
fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
libc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields.split()]})
for size in map(int, sys.argv[1:]):
    block, before = ctypes.c_void_p(), libc.mallinfo2().hblkhd
    assert libc.posix_memalign(ctypes.byref(block), 64, size) == 0
    print(libc.mallinfo2().hblkhd - before)
    libc.free(block)
    assert libc.mallinfo2().hblkhd == before
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_mapped_block_takes_what_glibc_maps_for_it_and_goes_back() -> None:
    command = [sys.executable, "-S", "-c", _BLOCKS, *map(str, SIZES)]
    done = subprocess.run(command, env=os.environ | heap_environment(tight=True), capture_output=True, text=True, check=True)
    said = [held(Log(sizes=[0, size, size], moves=[1, -1, 2, -2]), 0, MappedHeap()) for size in SIZES]
    found = list(map(int, done.stdout.split()))
    assert found[0] == 0 and said[0] >= SIZES[0], "a small block is of the heap"
    assert said[1:] == found[1:]


@pytest.mark.long
def test_tight_memory_changes_no_bit(config_of: Callable[..., Path], tmp_path: Path) -> None:
    ends = []
    for name, limit in (("roomy", "64GiB"), ("tight", "720MiB")):
        run = tmp_path / f"run-{name}"
        done = holdfast("train", config_of(name, train={"steps": 6, "memory_limit": limit}), "--run", run)
        assert done.returncode == 0, done.stderr
        launch = json.loads((run / "attempts" / "001" / "launch.json").read_text())
        assert (launch["env"]["MALLOC_MMAP_THRESHOLD_"] == str(MAPPED_FROM)) == (name == "tight")
        ends.append(json.loads((run / "summary.json").read_text())["artifact_sha256"])
    assert ends[0] == ends[1]


def test_what_is_written_where_it_lies_takes_nothing_and_what_gets_another_shape_is_followed() -> None:
    """The first is answered without asking fakes, which know the second; a small number keeps its value."""
    with FakeTensorMode(), Ledger() as ledger:
        matrix, number = torch.empty(4, 6), torch.tensor(3.0)
        before = list(ledger.log.moves)
        for same in (matrix.mul_(2), matrix.add_(matrix), matrix.normal_(), matrix.copy_(matrix)):
            assert same is matrix
        assert ledger.log.moves == before and matrix.t_().shape == (6, 4) and torch.add(matrix, 1).shape == (6, 4)
        multiplied = ledger.log.multiplications
        matrix.addmm_(torch.empty(6, 5), torch.empty(5, 4))
        assert ledger.log.multiplications - multiplied == 6 * 5 * 4
        number.add_(1)
    assert number.constant == 4.0  # type: ignore[attr-defined]
