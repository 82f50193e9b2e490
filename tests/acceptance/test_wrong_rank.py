"""A rank that computes wrong without an error is named by what others compute of its work."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from holdfast.config.config import Config, Train
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import ALONE, Rank
from holdfast.trainer.loop.loop import _spot_checks
from holdfast.trainer.loop.spot_check import spot_check, suspects

TOLD = [
    ([["a", "a", "b"], ["b", "b", "a"]], ([], False), "all is well on two"),
    ([["a", "a", "x"], ["b", "b", "y"]], ([0, 1], False), "two that differ blame each other"),
    ([["a", "A", "b"], ["b", "b", "a"]], ([0], True), "one differs from itself"),
    ([["a", "a", "b"], ["B", "B", "C"], ["c", "c", "d"], ["d", "d", "a"]], ([1], True), "wrong every time: both neighbours say so"),
    ([["a", "a", "b"], ["b", "b", "X"], ["c", "c", "d"], ["d", "d", "a"]], ([1, 2], False), "wrong once, in what it did for another"),
    ([["a", "a", "b"], ["B", "B", "C"], ["c", "c", "a"]], ([1], True), "three ranks"),
]


@pytest.mark.parametrize(("told", "found", "why"), TOLD, ids=[why for *_, why in TOLD])
def test_bits_that_differ_name_who_is_wrong(told: list[list[str]], found: tuple[list[int], bool], why: str) -> None:
    assert suspects(told) == found, why


class Threads(Rank):
    """Ranks that are threads."""

    def __init__(self, number: int, size: int, barrier: threading.Barrier, heard: dict[int, Any]) -> None:
        self.number, self.size, self.barrier, self.heard = number, size, barrier, heard

    def exchange(self, facts: Any) -> list[Any]:
        self.heard[self.number] = facts
        self.barrier.wait(300)
        return [self.heard[number] for number in range(self.size)]


def checked(size: int, wrong: int | None, samples: list[int]) -> tuple[list[str], list[Any]]:
    """(what each rank refuses with, events), where rank `wrong` computes one number of its gradients wrong."""
    barrier, heard, refused, events = threading.Barrier(size), {}, [""] * size, []

    def work(number: int) -> None:
        gradient = torch.zeros(4)

        def compute_alone(step: int, part: list[int], announce: Any) -> None:
            gradient.copy_(torch.tensor([step, sum(part), len(part), float(number == wrong)]))

        training: Any = SimpleNamespace(
            rank=Threads(number, size, barrier, heard),
            task=SimpleNamespace(data=SimpleNamespace(sizes=list(range(100, 200)))),
            optimizer=SimpleNamespace(gradient=gradient, clear=gradient.zero_),
            compute_alone=compute_alone,
            job=SimpleNamespace(event=lambda kind, **facts: events.append(facts) if number == 0 else None),
        )
        try:
            spot_check(training, 7, samples, lambda *_: 1.0)
        except Refusal as refusal:
            refused[number] = str(refusal)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return refused, events


@pytest.mark.parametrize("wrong", [None, 0, 2])
def test_every_rank_hears_who_computes_wrong(wrong: int | None) -> None:
    refused, events = checked(4, wrong, list(range(12)))
    if wrong is None:
        assert refused == [""] * 4 and not events
    else:
        assert len(set(refused)) == 1 and f"with other bits on rank {wrong}: it computes wrong" in refused[0]
        assert events == [{"step": 7, "ranks": [wrong], "sure": True}]


def test_of_two_ranks_both_are_named_and_a_step_of_too_few_samples_is_let_through() -> None:
    assert "on rank 0, 1, one of which is wrong" in checked(2, 1, list(range(12)))[0][0]
    assert checked(4, 1, [1, 2])[0] == [""] * 4


def test_one_rank_checks_nothing_and_a_card_has_to_be_deterministic() -> None:
    config = Config.model_validate({"model": "m", "data": {"files": "f"}, "train": {"spot_check": 4, "ranks": 2}})
    training: Any = SimpleNamespace(job=SimpleNamespace(config=config), settings=SimpleNamespace(deterministic=False), rank=ALONE)
    assert _spot_checks(training) == 4
    training.rank = Rank()
    training.rank.size = 2
    with pytest.raises(Refusal, match="compares bits"):
        _spot_checks(training)
    with pytest.raises(ValueError, match="spot_check computes parts on one rank alone"):
        Train(spot_check=2, fsdp=True, ranks=2)
