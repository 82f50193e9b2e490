"""A group of several ranks over torch.distributed, found through the environment that torchrun also sets. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import orjson
import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.base.errors import error_message
from holdfast.base.files import Json
from holdfast.trainer.common.oom import OutOfMemory
from holdfast.trainer.common.waiting import WAITING
from holdfast.trainer.distributed.rank import PeerLost, Rank, Result, heard_of, no_facts, told_of

_FOR_EVER = timedelta(days=7)  # who hangs is found by what it published, and named; a watchdog here would only guess
_LINE_BYTES = 4096  # of most exchanges


class Group(Rank):
    """One of several processes. Small facts go over gloo, gradients over what the device has (NCCL, RCCL, gloo).

    stop: asked at every exchange whether this rank is to stop; `stopping` is what all know since the last one. together: as in Rank; one
    that runs out of memory then cannot tell the others, which wait for it in the middle of a pass.
    """

    def __init__(self, number: int, size: int, store: Any, stop: Callable[[], bool], together: bool = False) -> None:
        self.number, self.size, self.stop, self.together = number, size, stop, together
        self.stopping = False
        self._scratch: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        with peers():
            dist.init_process_group(backend, store=store, rank=number, world_size=size, timeout=_FOR_EVER)

    def exchange(self, facts: Json) -> list[Json]:
        line = orjson.dumps(facts | {"stop": self.stop()})
        with WAITING.during(True), peers():
            every = _gather_lines(line, self.size, _LINE_BYTES)
            longest = max(int.from_bytes(one[:8], "little") for one in every)
            if longest > _LINE_BYTES:
                every = _gather_lines(line, self.size, longest)
        heard: list[Json] = [orjson.loads(one[8 : 8 + int.from_bytes(one[:8], "little")]) for one in every]
        self.stopping = any(one.pop("stop") for one in heard)
        return heard

    def agreed(self, work: Callable[[], Result], facts: Callable[[Result], Json] = no_facts) -> tuple[Result, list[Json]]:
        full: OutOfMemory | None = None
        try:
            result = work()
            own = facts(result)
        except OutOfMemory as error:
            if self.together:
                raise
            full = error.with_traceback(None)  # the frames hold the tensors that did not fit
            full.__context__ = None
            own = {"full": told_of(full)}
        except RuntimeError as error:
            if self.together and _of_a_peer(error):  # in the middle of a pass
                raise PeerLost(error_message(error)) from None
            raise
        every = self.exchange(own)
        for rank, one in enumerate(every):
            if "full" in one:
                raise heard_of(one["full"], rank)
        return result, every

    def sum_(self, tensors: Sequence[Tensor], in_tree: bool) -> None:
        with WAITING.during("the sum of the gradients"), peers():
            for tensor in tensors:
                if in_tree:
                    self._add_in_tree(tensor.view(-1))
                else:
                    dist.all_reduce(tensor)

    def share(self, tensors: Sequence[Tensor]) -> None:
        with WAITING.during("the first rank's state"), peers():
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def settle(self) -> None:
        if torch.cuda.is_available():
            with WAITING.during("a pass of all ranks") if self.together else nullcontext():  # its collectives are kernels of the card
                torch.cuda.synchronize()

    def _add_in_tree(self, block: Tensor) -> None:
        """Add the blocks of all ranks, a power of two of them: first those of neighbours, then of neighbouring pairs, and so on.

        Each element is added in that one tree, whoever adds it: partners halve between them what they add (recursive halving), then
        give each other what they have. On the wire: 2 (size - 1) / size of the block, as in a ring.
        """
        low, high, done = 0, block.numel(), []
        for bit in range(self.size.bit_length() - 1):
            other = self.number ^ (1 << bit)
            middle = (low + high) // 2
            halves = (low, middle), (middle, high)
            keep, give = halves if self.number < other else halves[::-1]
            theirs = self._room(block, keep[1] - keep[0])
            _swap(other, block[give[0] : give[1]], theirs)
            block[keep[0] : keep[1]].add_(theirs)
            low, high = keep
            done.append((other, keep, give))
        for other, keep, give in reversed(done):
            _swap(other, block[keep[0] : keep[1]], block[give[0] : give[1]])

    def _room(self, block: Tensor, size: int) -> Tensor:
        """Return a buffer of `size` numbers for what a partner sends. It is kept, because a step must not run out of memory here."""
        key = block.dtype, block.device
        if key not in self._scratch or self._scratch[key].numel() < size:
            self._scratch[key] = torch.empty(size, dtype=block.dtype, device=block.device)
        return self._scratch[key][:size]


@contextmanager
def peers() -> Iterator[None]:
    """Turn what a backend raises when a peer is gone into PeerLost."""
    try:
        yield
    except RuntimeError as error:  # dist.DistError is one, too
        raise PeerLost(error_message(error)) from None


def _of_a_peer(error: RuntimeError) -> bool:
    """Return whether a backend raised `error` because it could not reach another rank."""
    return isinstance(error, dist.DistError) or "gloo/transport" in str(error)


def _swap(other: int, outgoing: Tensor, incoming: Tensor) -> None:
    """Send to `other` and receive from it, at once. An empty block is not sent."""
    both = [(dist.isend, outgoing), (dist.irecv, incoming)]
    ways = [dist.P2POp(way, tensor, other) for way, tensor in both if tensor.numel()]
    for work in dist.batch_isend_irecv(ways) if ways else ():
        work.wait()


def _gather_lines(line: bytes, size: int, room: int) -> list[bytes]:
    """Gather one line from each rank: [8 bytes of its length, then the line, cut to `room` bytes]."""
    own = torch.frombuffer(bytearray((len(line).to_bytes(8, "little") + line)[: 8 + room].ljust(8 + room, b" ")), dtype=torch.uint8)
    every = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(every, own)
    return [one.numpy().tobytes() for one in every]
