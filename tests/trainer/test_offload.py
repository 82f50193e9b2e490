"""Copies of moments to and from a card, on streams that run whenever they may: nothing is updated before it is there, or left behind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.trainer.optim import host_moments
from holdfast.trainer.optim.host_moments import HostMoments


class Card:
    """Streams whose work is put off and then done in any order that what they wait for allows."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.work: list[tuple[Callable[[], Any], set[int]]] = []
        self.done: set[int] = set()
        self.now = self.on = Stream(self)
        self.draining = False

    def drain(self) -> None:
        self.draining = True
        while ready := [at for at, (_, after) in enumerate(self.work) if at not in self.done and after <= self.done]:
            at = self.chance.choice(ready)
            self.work[at][0]()
            self.done.add(at)
        self.draining = False

    @contextmanager
    def stream(self, one: Stream) -> Iterator[None]:
        before, self.on = self.on, one
        yield
        self.on = before


class Stream:
    def __init__(self, card: Card) -> None:
        self.card = card
        self.after: set[int] = set()

    def do(self, work: Callable[[], Any]) -> None:
        self.card.work.append((work, set(self.after)))
        self.after = {len(self.card.work) - 1}

    def wait_stream(self, other: Stream) -> None:
        self.after |= other.after

    def wait_event(self, event: Event) -> None:
        self.after |= event.after

    def synchronize(self) -> None:
        self.card.drain()


class Event:
    def __init__(self) -> None:
        self.after: set[int] = set()

    def record(self, stream: Stream) -> None:
        self.after = set(stream.after)


class PutOff(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies are the current stream's work."""

    def __init__(self, card: Card) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.card = card

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default and not self.card.draining:
            self.card.on.do(lambda: args[0].copy_(args[1]))
            return args[0]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("seed", range(12))
def test_each_moment_is_updated_once_a_time_in_whatever_order_the_streams_run(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(seed)
    for name, stand_in in (
        ("Stream", lambda _device: Stream(card)),
        ("Event", Event),
        ("stream", card.stream),
        ("current_stream", lambda _device: card.now),
    ):
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(host_moments, "PinnedMapping", lambda *_: None)
    size, stretch = 37, 5
    held = HostMoments(2, size, stretch, torch.device("cpu"))
    stretches = [(start, min(start + stretch, size)) for start in range(0, size, stretch)]
    for update in (1, 2):
        with PutOff(card):
            for (start, _), parts in zip(stretches, held.visit(stretches), strict=True):
                card.now.do(lambda parts=parts, start=start: [part.mul_(2).add_(start) for part in parts])
        expected = torch.cat([torch.full((end - start,), float(start * (2**update - 1))) for start, end in stretches])
        assert all(torch.equal(moment, expected) for moment in held.host)
