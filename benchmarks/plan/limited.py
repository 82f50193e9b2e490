"""Whether a step lives with what its plan says, and dies without it: drawn runs under RLIMIT_DATA.

    python benchmarks/plan/limited.py --seed N [--draws 30]

Each run is forked twice. Each fork does the step once without a limit, as `holdfast train` tries the largest micro-batch before its first
step: from then on libraries, threads and compiled products have what they keep. It does the step again where all data of the process is
limited to what is in use, less the tensors, and 1.02 or 0.9 times what the plan says that the allocator holds at the most. In use is
what is mapped, less what lies free in the heap. Memory is taken as in `holdfast train` where it is tight: large blocks are mappings of
their own. --heap: as where there is room to spare, from a heap that keeps what is freed.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import os
import re
import resource
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import draws as drawing
from accuracy import loaded, stepped, traced, write_model

from holdfast.machine.heap import heap_environment

ENOUGH, TOO_LITTLE = 1.02, 0.9
_LEAST = 250 << 20  # bytes of a step: the 3 to 4 MB that products take for a moment are then below the 2 %
_OF_MEMORY = ("memory", "bad_alloc", "create a primitive")


_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


_LIBC = ctypes.CDLL(None)
_LIBC.mallinfo2.restype = _Heap


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--draws", type=int, default=30)
    arguments.add_argument("--most", type=float, default=drawing.MOST_OPERATIONS, help="operations of a step")
    arguments.add_argument("--heap", action="store_true", help="as where memory is not tight")
    asked = arguments.parse_args()
    wanted = heap_environment(tight=not asked.heap)
    if not wanted.items() <= os.environ.items():  # which glibc reads when a process begins
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    warnings.simplefilter("ignore")
    for name in ("torch", "transformers", "peft", "holdfast.trainer.tasks.text.task", "holdfast.trainer.jobs.account"):
        importlib.import_module(name)  # once, for all forks
    right = count = 0
    for draw in drawing.draws(asked.seed, 1 << 20, kinds=True, most=asked.most):
        if count == asked.draws:
            break
        about = f"{draw['number']} {draw['model']['model_type']} {draw['adapter'].get('type', 'lora')} {draw['settings']['dtype']}"
        held = _forked(partial(_held, draw, asked.heap))
        if not held:
            print(f"{about} cannot be traced", flush=True)
        if not held or held < _LEAST:
            continue
        with tempfile.TemporaryDirectory() as folder:
            _forked(partial(write_model, draw, folder))
            found = [_forked(partial(_under, draw, folder, int(share * held))) == 1 for share in (ENOUGH, TOO_LITTLE)]
        count, right = count + 1, right + (found == [True, False])
        lives = f"{'lives' if found[0] else 'DIES'} at {ENOUGH}, {'LIVES' if found[1] else 'dies'} at {TOO_LITTLE}"
        print(f"{about} {held / 1e6:.1f} MB: {lives}", flush=True)
    print(f"{right} of {count} as planned")


def _held(draw: dict[str, Any], heap: bool) -> int:
    return int(traced(draw)["held" if heap else "mapped"] or 0)


def _under(draw: dict[str, Any], folder: str, size: int) -> int:
    """Do the step where all tensors may take `size` bytes: 1 where it is done, 0 where that is not enough."""
    with loaded(draw, folder) as (task, optimizer, tensors):
        stepped(task, optimizer, draw)
        gc.collect()
        limit = _in_use() + size - tensors
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            stepped(task, optimizer, draw)
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and not any(word in str(error) for word in _OF_MEMORY):
                raise
            return 0
    return 1


def _in_use() -> int:
    """Bytes of this process's data, less what lies free in its heap."""
    _LIBC.malloc_trim(0)
    mapped = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert mapped is not None
    return int(mapped[1]) * 1024 - int(_LIBC.mallinfo2().fordblks)


def _forked(work: Any) -> int | None:
    """A number that a fork of this process comes to; None where it dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        code = 1
        try:
            os.write(writing, str(work() or 0).encode())
            code = 0
        except Exception as error:  # noqa: BLE001  (told, and the case counts as dead)
            sys.stderr.write(f"{type(error).__name__}: {error}\n"[:300])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return int(told) if told else None


if __name__ == "__main__":
    main()
