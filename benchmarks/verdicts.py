"""How often `verify` is right on simulated results whose truth is known: false verdicts, power as computed, intervals.

    python benchmarks/verdicts.py [--draws 2000]

Each draw is a comparison of two models on rows in clusters (a line of a file) that move together, heavy-tailed, with a second
test beside the loss (exact match), all corrected together as `verify` corrects them.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from test_verdicts import drawn  # the simulation that the tests use

from holdfast.verify.stats import LEVEL, paired_difference
from holdfast.verify.verdict import Pairs, judge, loss_answer, pairs_answer

SHAPES = ((12, 5), (40, 3), (200, 1))  # clusters, rows of each
EFFECTS = (0.0, 0.05, 0.15, 0.5)  # nats a token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    draws = parser.parse_args().draws
    print("clusters x rows  effect   better   worse    same  cannot tell  computed power  interval holds")
    for clusters, each in SHAPES:
        for effect in EFFECTS:
            print(row(clusters, each, effect, draws), flush=True)


def row(clusters: int, each: int, effect: float, draws: int) -> str:
    rng = np.random.default_rng([clusters, round(1000 * effect)])
    found: list[str] = []
    held = 0
    for _ in range(draws):
        losses = drawn(rng, effect, clusters, each)
        passed = Pairs(*(rng.random((2, clusters)) < 0.6).tolist())  # no effect on answers
        loss, difference = loss_answer(losses)
        found.append(judge(loss, difference, {"exact_match": pairs_answer(passed)}, trained_on=False)["verdict"])
        low, high = loss["interval"]
        held += low <= -effect <= high
    shares = [f"{found.count(word) / draws:8.1%}" for word in ("better", "worse", "same")]
    told = f"{computed(rng, effect, clusters, each):15.1%}" if effect else " " * 15
    cannot = found.count("cannot_tell") / draws
    return f"{clusters:>8} x {each:<5} {effect:>6}{''.join(shares)}{cannot:12.1%}{told}{held / draws:15.1%}"


def computed(rng: Any, effect: float, clusters: int, each: int) -> float:
    """The power a textbook gives a test of this size at this error; corrected for two tests (Holm: the stricter level)."""
    large = drawn(rng, effect, 5000, each)
    error = paired_difference(large.tuned - large.base, large.tokens, large.clusters).error
    assert error is not None
    needed = NormalDist().inv_cdf(1 - LEVEL / 4)
    return NormalDist().cdf(effect / (error * math.sqrt(5000 / clusters)) - needed)


if __name__ == "__main__":
    main()
