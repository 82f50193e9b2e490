"""The router: whose prompt it is, told from tokens alone; nobody's where nothing speaks for anybody; the same bits each time."""

from __future__ import annotations

import numpy as np

from holdfast.serve.router import NONE, features, fit, router_of, threshold_of


def prompts(seed: int, count: int, low: int, high: int) -> list[list[int]]:
    """Prompts whose middle is drawn of the tokens from low to high, within a frame that all share."""
    rng = np.random.default_rng(seed)
    return [[1, 2, 3, *rng.integers(low, high, 12).tolist(), 4, 5] for _ in range(count)]


FAMILIES = [(10, 60), (60, 110), (110, 160)]  # the third is nobody's


def made(count: int, seed: int) -> tuple[list[list[int]], list[int]]:
    rows = [(ids, number if number < 2 else NONE) for number, span in enumerate(FAMILIES) for ids in prompts(seed + number, count, *span)]
    return [ids for ids, _ in rows], [number for _, number in rows]


def test_prompts_go_to_their_expert_and_those_of_nobody_to_none() -> None:
    router = fit(*made(40, 1), 2)
    asked, truth = made(40, 100)
    right = sum(router.choose(ids) == wanted for ids, wanted in zip(asked, truth, strict=True))
    assert right >= 0.95 * len(asked)
    strangers = prompts(7, 40, 200, 300)
    assert sum(router.choose(ids) == NONE for ids in strangers) >= 38


def test_the_same_rows_give_the_same_bytes_and_these_the_same_choices() -> None:
    given = made(20, 1)
    first, again = fit(*given, 2), fit(*given, 2)
    assert first.to_bytes() == again.to_bytes()
    back = router_of(first.to_bytes())
    assert [back.choose(ids) for ids in given[0]] == [first.choose(ids) for ids in given[0]]


def test_the_threshold_is_where_most_choices_are_right() -> None:
    scores = np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.1], [0.3, 0.6]])
    assert threshold_of(scores, [0, 1, NONE, NONE]) == 0.75
    assert threshold_of(scores, [0, 1, 0, 1]) < 0.6
    assert threshold_of(scores, [NONE] * 4) > 0.9


def test_features_are_those_of_tokens_in_their_order() -> None:
    assert features([1, 2, 3]).tolist() != features([3, 2, 1]).tolist()
    assert features([5]).size == 1 and features([1, 2]).size == 3
    assert features([9, 9, 9, 9]).size == 3, "an n-gram counts once"
