"""Make mapped memory known to a GPU's driver, so that copies from the device go at the bus's speed. Copies nothing itself."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import torch


class PinnedMapping:
    """A mapping that the driver may write to directly, from the construction to `release`. `refused`: why it is not."""

    def __init__(self, memory: mmap.mmap, device: torch.device) -> None:
        self.memory = memory
        self.refused: str | None = None
        self._place: int | None = None
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # on ROCm: HIP's
        place = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
        code = int(runtime.cudaHostRegister(place, len(memory), 0))
        if code:
            self.refused = f"the driver answers {code}"
            with contextlib.suppress(RuntimeError):  # it keeps the answer, and would give it to the next launch, which asked nothing
                torch.ones(1, device=device)
        else:
            self._place = place

    def release(self) -> None:
        """Unregister the memory with the driver. May be called again."""
        if self._place is not None:
            place, self._place = self._place, None
            torch.cuda.cudart().cudaHostUnregister(place)  # type: ignore[no-untyped-call]
