"""What a traced step needs at its most, by what it is for, and where in the step that is. Pure."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from dataclasses import dataclass

from holdfast.trainer.traced.ledger import MAPPED, Log
from holdfast.trainer.traced.step import HEAD, StepTrace

KINDS = ("weights", "adapter", "gradients", "optimizer", "activations", "logits", "workspace")
_NUMBER = re.compile(r"\d+")
_PHASES = ("step", "forward", "backward", "gate", "update", "end")


@dataclass(frozen=True)
class Peak:
    """bytes: of the blocks that are there at the most, by kind; phase: what the step does then; largest: the blocks, largest first.

    building: the most that was there before the step, while the model was made; places: bytes by kind at the most of each
    phase and module, layers told apart by nothing.
    """

    bytes: dict[str, int]
    phase: str
    largest: list[tuple[int, str, str]]
    building: int
    places: dict[str, dict[str, int]]

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


def peak_of(traced: StepTrace, unit: int = 1) -> Peak:
    """Compute the peak of a step. unit: what sizes are rounded up to, in bytes."""
    log, kinds = traced.log, kinds_of(traced)
    begin, files = start_of(log), max((place for place, what in log.marks if what == MAPPED), default=0)
    sizes = [-(-size // unit) * unit for size in log.sizes]
    now = most = building = at = 0
    by_kind, highest = dict.fromkeys(KINDS, 0), dict[str, int]()
    places: dict[str, dict[str, int]] = {}
    ends = iter([*(mark for mark in log.marks if mark[1] in _PHASES), (len(log.moves) + 1, "")])
    phase, (until, following) = "", next(ends)
    for place, number in enumerate(log.moves):
        size = sizes[number] if number > 0 else -sizes[-number]
        now += size
        by_kind[kinds[abs(number)]] += size
        while place >= until:
            phase, (until, following) = following, next(ends)
        if place < files:
            continue
        if place < begin:
            building = max(building, now)
        elif number > 0 and now > highest.get(where := f"{phase} {_module(log.made_by[number])}", 0):
            highest[where], places[where] = now, dict(by_kind)
            if now > most:
                most, at = now, place
    there = alive(log, at + 1)
    largest = sorted(((sizes[number], kinds[number], log.made_by[number]) for number in there if number not in traced.kinds), reverse=True)
    return Peak(places[max(highest, key=highest.__getitem__)], phase_at(log, at), largest[:12], building, places)


@functools.cache
def _module(made_by: str) -> str:
    """Return the module of an operation, the same in each layer."""
    return _NUMBER.sub("*", made_by.partition(" ")[2])


def start_of(log: Log) -> int:
    """Return the number of moves before the step."""
    return next(place for place, what in log.marks if what == "step")


def phase_at(log: Log, move: int) -> str:
    """Return the phase of the step at a move."""
    phases = [(place, what) for place, what in log.marks if what in _PHASES]
    return phases[bisect_right([place for place, _ in phases], move) - 1][1]


def alive(log: Log, moves: int) -> set[int]:
    """Return the blocks that exist after `moves` moves."""
    there: set[int] = set()
    for number in log.moves[:moves]:
        if number > 0:
            there.add(number)
        else:
            there.discard(-number)
    return there


def kinds_of(traced: StepTrace) -> dict[int, str]:
    """Return what each block of the log is for.

    Activations are what is there when backward begins, and, of layers that are computed again, what is there when that is done.
    """
    log = traced.log
    kinds = dict.fromkeys(range(1, len(log.sizes)), "workspace")
    marks: dict[int, list[str]] = {}
    for place, what in log.marks:
        marks.setdefault(place, []).append(what)
    there: set[int] = set()
    before: set[int] = set()
    for place, number in enumerate([*log.moves, 0]):
        for what in marks.get(place, ()):
            if what in ("forward", "again"):
                before = set(there)
            elif what in ("backward", "kept again"):
                kinds |= dict.fromkeys(there - before, "activations")
        if number > 0:
            there.add(number)
        elif number:
            there.discard(-number)
    kinds |= {number: "logits" for number, made in enumerate(log.made_by) if made.endswith(HEAD)}
    return kinds | traced.kinds
