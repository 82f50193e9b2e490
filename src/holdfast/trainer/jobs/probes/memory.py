"""How much device memory can really be had: take it in blocks, write and read each. Main memory is left alone: the kernel would kill."""

from __future__ import annotations

from typing import Any

import torch

SHARE = 0.9  # of what is said to be free; the rest is left to a display and to the driver
ENOUGH = 0.8  # of what was asked for; less is a finding
BLOCK_BYTES = 256 << 20


def probe(device: torch.device) -> dict[str, Any]:
    """Test free memory: {outcome, free_bytes, had_bytes}. wrong: much less than is said to be free, or it keeps no content."""
    if device.type == "cpu":
        return {"outcome": "absent", "detail": "no device memory here"}
    free, _ = torch.cuda.mem_get_info()
    if torch.cuda.get_device_properties(device).is_integrated:
        free //= 2  # it is main memory, and others live in it
    asked = int(free * SHARE)
    had, kept = take(device, asked, BLOCK_BYTES)
    facts = {"free_bytes": free, "had_bytes": had}
    if not kept:
        return {"outcome": "wrong", "detail": f"of {had / 2**30:.1f} GiB not all bytes kept what was written to them", **facts}
    if had < asked * ENOUGH:
        return {"outcome": "wrong", "detail": f"{free / 2**30:.1f} GiB are said to be free, {had / 2**30:.1f} GiB could be had", **facts}
    return {"outcome": "ok", **facts}


def take(device: torch.device, asked: int, block: int) -> tuple[int, bool]:
    """Allocate blocks; return (bytes obtained of those asked for, whether all kept their content while held together)."""
    blocks: list[torch.Tensor] = []
    try:
        while (len(blocks) + 1) * block <= asked:
            blocks.append(torch.full((block,), len(blocks) % 251, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError:
        pass  # that is the answer
    kept = all(bool((tensor == number % 251).all()) for number, tensor in enumerate(blocks))
    return len(blocks) * block, kept
