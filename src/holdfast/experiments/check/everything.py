"""The items of `holdfast check` in their order; what one needs of another is seen to. One that fails does not end the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from holdfast.base.tasks import kind_of
from holdfast.base.units import counted, listed
from holdfast.base.wait import doing
from holdfast.experiments.check.bench import Bench, Item
from holdfast.experiments.check.bits import order, resume
from holdfast.experiments.check.first import first
from holdfast.experiments.check.overfit import overfit
from holdfast.experiments.check.precision import precision
from holdfast.experiments.check.speed import speed
from holdfast.experiments.check.start import start

ITEMS: dict[str, Callable[[Bench], Item]] = {
    "start": start,
    "first": first,
    "overfit": overfit,
    "precision": precision,
    "order": order,
    "resume": resume,
    "speed": speed,
}
_DOES = {
    "start": "building the model, proving its fast paths",
    "first": "ten steps, fewer where a minute holds no more",
    "overfit": "ten rows by heart, about four minutes at most",
    "precision": "the hardest shapes in three number formats, four minutes at most",
    "order": "one step three times",
    "resume": "one step in a fresh process",
    "speed": "the fullest step, as often as a minute holds it",
}
_MINUTES = {"first": 1, "overfit": 4, "precision": 4, "speed": 1}  # after which no step is begun; the other items are a few steps each
_OF_TEXT = ("precision",)  # a network on tables computes in fp32 alone


def announced(only: Sequence[str]) -> str:
    """Say how many items are tried, and how long that may take in all."""
    bounded, others = ([name for name in only if (name in _MINUTES) is held] for held in (True, False))
    told = []
    if bounded:
        minutes = counted(sum(_MINUTES[name] for name in bounded), "minute")
        ends = "end once their step is done" if len(bounded) > 1 else "ends once its step is done"
        told.append(f"after {minutes}{' in all' if len(bounded) > 1 else ''} {listed(bounded)} {ends}")
    if others:
        told.append(f"{listed(others)}: a few steps{' each' if len(others) > 1 else ''}, however long one takes on this machine")
    return f"{counted(len(only), 'item')} {'is' if len(only) == 1 else 'are'} tried: {'; '.join(told)}"


def items(bench: Bench, only: Sequence[str]) -> Iterator[Item]:
    """Yield the items asked for, each as soon as it is known. What the start refuses leaves the others unknown."""
    with doing(f"start{f' (1 of {len(only)})' if 'start' in only else ''}: {_DOES['start']}"):
        begun = start(bench)
    if "start" in only:
        yield begun
    for number, name in enumerate(only, 1):
        if name == "start":
            continue
        if not bench.facts:
            told = "" if "start" in only else bench.command("check", "--only start")  # which says why
            yield Item(name, "unknown", {}, "not tried: the run does not start", told)
        elif not bench.facts["trainable"]:
            yield Item(
                name,
                "failed" if name == "overfit" else "unknown",
                {"trainable": 0, "cause": "nothing_trained"},
                "nothing learns: no parameter is trained",
                "" if "start" in only else begun.next,
            )
        elif name in _OF_TEXT and not kind_of(bench.config).base_model:
            yield Item(name, "unknown", {}, "a network on tables computes in fp32 alone")
        else:
            with doing(f"{name} ({number} of {len(only)}): {_DOES[name]}"):
                found = ITEMS[name](bench)
            yield found
