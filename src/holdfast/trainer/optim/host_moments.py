"""An optimizer's moments in main memory, of which a card has but the stretch that is being updated. Computes nothing."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from holdfast.trainer.common.pinned import PinnedMapping

PLACES = 3  # on the card: of the stretch that comes, the one that is updated, the one that goes


class HostMoments:
    """Moments of fp32 in memory that the card copies from and to directly. `host`: each as long as the weights, zero at first.

    The memory is mapped, not torch's own pinned memory, which is rounded up to a power of two.
    """

    def __init__(self, count: int, size: int, stretch: int, device: torch.device) -> None:
        self.device = device
        memory = mmap.mmap(-1, 4 * size * count)
        self.pinned = PinnedMapping(memory, device)
        whole = torch.frombuffer(memory, dtype=torch.float32)
        self.host = [whole[at : at + size] for at in range(0, size * count, size)]
        self._places = [[torch.empty(stretch, device=device) for _ in range(count)] for _ in range(PLACES)]
        self._coming, self._going = torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._here = [torch.cuda.Event() for _ in range(PLACES)]  # type: ignore[no-untyped-call]
        self._gone = [torch.cuda.Event() for _ in range(PLACES)]  # type: ignore[no-untyped-call]

    def visit(self, stretches: Sequence[tuple[int, int]]) -> Iterator[list[Tensor]]:
        """Yield the moments of each stretch (start, end) on the card; what the caller changes in them is copied back.

        At the end of it all of it is back: the host waits, so that whoever reads `host` next finds the update there.
        """
        now = torch.cuda.current_stream(self.device)
        for number, (start, end) in enumerate(stretches):
            for ahead in (0, 1) if number == 0 else (number + 1,):
                if ahead < len(stretches):
                    self._bring(ahead % PLACES, *stretches[ahead])
            at = number % PLACES
            now.wait_event(self._here[at])
            parts = [part[: end - start] for part in self._places[at]]
            yield parts
            self._going.wait_stream(now)
            with torch.cuda.stream(self._going):
                for whole, part in zip(self.host, parts, strict=True):
                    whole[start:end].copy_(part, non_blocking=True)
                self._gone[at].record(self._going)
        self._going.synchronize()

    def _bring(self, at: int, start: int, end: int) -> None:
        self._coming.wait_event(self._gone[at])  # the stretch that was there
        with torch.cuda.stream(self._coming):
            for whole, part in zip(self.host, self._places[at], strict=True):
                part[: end - start].copy_(whole[start:end], non_blocking=True)
            self._here[at].record(self._coming)
