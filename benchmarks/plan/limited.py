"""Whether a step lives with what its plan says, and dies without it: drawn runs under RLIMIT_DATA.

    python benchmarks/plan/limited.py --seed N [--draws 30]

Each run is forked twice. The limit is what the fork has mapped when the model is built, and a small step has brought in threads and
libraries, less its tensors, and 1.02 times what the plan says the allocator holds at the most; then 0.9 times.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import re
import resource
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import draws as drawing
from accuracy import built, stepped, traced

ENOUGH, TOO_LITTLE = 1.02, 0.9


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--draws", type=int, default=30)
    asked = arguments.parse_args()
    right = count = 0
    for draw in islice(drawing.draws(asked.seed, 10 * asked.draws, kinds=True), asked.draws):
        held = _forked(lambda draw=draw: int(traced(draw)["held"] or 0))
        sizes = [int(share * held) for share in (ENOUGH, TOO_LITTLE)]
        enough, little = (_forked(lambda draw=draw, size=size: _under(draw, size)) == 0 for size in sizes)
        count, right = count + 1, right + (enough and not little)
        about = f"{draw['model']['model_type']} {draw['adapter'].get('type', 'lora')} {held / 1e6:.1f} MB"
        print(f"{about}: {'lives' if enough else 'DIES'} at {ENOUGH}, {'LIVES' if little else 'dies'} at {TOO_LITTLE}", flush=True)
    print(f"{right} of {count} as planned")


def _under(draw: dict[str, Any], size: int) -> int:
    """Do the step where all tensors together may take `size` bytes; 1 where that is not enough."""
    with built(draw | {"lengths": [16] * len(draw["lengths"]), "labels": 8}) as (task, optimizer, _):
        stepped(task, optimizer, draw)  # threads and libraries are there from here on
    del task, optimizer
    with built(draw) as (task, optimizer, there):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        mapped = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        assert mapped is not None
        limit = int(mapped[1]) * 1024 + size - there
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        try:
            stepped(task, optimizer, draw)
        except (MemoryError, RuntimeError) as error:
            if "memory" not in str(error) and not isinstance(error, MemoryError):
                raise
            return 1
    return 0


def _forked(work: Any) -> int:
    """A number that a fork of this process comes to; 1 where it dies."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        code = 1
        try:
            os.write(writing, str(work()).encode())
            code = 0
        except Exception as error:  # noqa: BLE001  (told, and the case counts as dead)
            sys.stderr.write(f"{type(error).__name__}: {error}\n"[:300])
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    return int(told) if told else 1


if __name__ == "__main__":
    main()
