"""`python kernels_counted.py`: under the watch a kernel of Triton's is one launch of the bytes it reads and writes. For test_faked.py."""

from __future__ import annotations

from faked.watch import BYTES_PER_S, Watch  # brings the pretended card, then torch

# isort: split
import torch
import triton
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode


@triton.jit
def added(x, y, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < size) + tl.load(y + at, mask=at < size), mask=at < size)


def main() -> None:
    with FakeTensorMode(), Watch() as watch:
        x, y = (torch.empty(1000, device="cuda", dtype=kind) for kind in (torch.bfloat16, torch.float32))
        watch.forget()
        added[(8,)](x, y, 1000, BLOCK=128)
    assert watch.launches == {"added": 1}, watch.launches
    bytes_moved = watch.seconds["layers", "added"] * BYTES_PER_S
    assert round(bytes_moved) == 2 * 1000 + 2 * 4 * 1000, bytes_moved
    assert triton.runtime.jit.JITFunction.run.__qualname__.startswith("JITFunction"), "left as it was"


if __name__ == "__main__":
    main()
