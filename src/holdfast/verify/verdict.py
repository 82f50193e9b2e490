"""From measurements of two models to an answer: better, worse, same, or cannot tell and how many rows it would take. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.base.units import chance
from holdfast.verify.stats import (
    FEWEST,
    FEWEST_ALIKE,
    LEVEL,
    Difference,
    Floats,
    holm,
    paired_difference,
    pairs_for,
    rows_for,
    share_interval,
    sign_test,
)

MARGIN = 0.01  # nats a token: one per cent of perplexity, below which two models count as the same


_OF_CLUSTERS = (("clusters_tuned", "only_tuned"), ("clusters_base", "only_base"), ("clusters", "asked"))  # of lm-eval, questions


@dataclass(frozen=True)
class Losses:
    """Of the same rows under two models: learned tokens, and the sums of their losses in nats; clusters: rows that belong together."""

    tokens: Floats
    base: Floats
    tuned: Floats
    clusters: npt.NDArray[Any]


@dataclass(frozen=True)
class Pairs:
    """Whether each of two models passed, prompt by prompt; clusters: prompts that belong together, None where each stands alone."""

    base: Sequence[bool]
    tuned: Sequence[bool]
    clusters: Sequence[Any] | None = None


def loss_answer(losses: Losses) -> tuple[Json, Difference]:
    """Return `loss` of the answer, per token; a difference below 0 says that the tuned model is better."""
    found = paired_difference(losses.tuned - losses.base, losses.tokens, losses.clusters)
    total = float(losses.tokens.sum())
    answer: Json = {
        "base": float(losses.base.sum()) / total,
        "tuned": float(losses.tuned.sum()) / total,
        "difference": found.value,
        "interval": list(found.interval) if found.interval else None,
        "p_value": found.p_value,
        "clusters": found.clusters,
    }
    return answer, found


def ab_answer(losses: Losses, floor: float) -> Json:
    """Return `ab` of the answer: in how many clusters the tuned model's loss per token is lower, by more than the noise floor."""
    _, group = np.unique(losses.clusters, return_inverse=True)
    each = np.bincount(group, losses.tuned - losses.base) / np.maximum(np.bincount(group, losses.tokens), 1)
    wins, lost = int((each < -floor).sum()), int((each > floor).sum())
    interval = share_interval(wins, lost)
    return {
        "wins": wins,
        "losses": lost,
        "ties": len(each) - wins - lost,
        "p_value": sign_test(wins, lost),
        "interval": list(interval) if interval else None,
    }


def pairs_answer(pairs: Pairs) -> Json:
    """Count the pairs passed by each model and by one alone, and do the exact test of those, which is McNemar's.

    Prompts of one cluster, as the same one asked twice, are one: of the side that more of them speak for. Where clusters speak for the
    other side than prompts do, nothing is shown.
    """
    base, tuned = np.array(pairs.base, bool), np.array(pairs.tuned, bool)
    only_tuned, only_base = int((tuned & ~base).sum()), int((base & ~tuned).sum())
    of = np.arange(len(base)) if pairs.clusters is None else numbered(pairs.clusters)
    ahead = np.bincount(of, tuned.astype(np.float64) - base)
    gained, lost = int((ahead > 0).sum()), int((ahead < 0).sum())
    agree = (gained - lost) * (only_tuned - only_base) > 0
    return {
        "asked": len(base),
        "clusters": len(ahead),
        "base": int(base.sum()),
        "tuned": int(tuned.sum()),
        "only_base": only_base,
        "only_tuned": only_tuned,
        "clusters_base": lost,
        "clusters_tuned": gained,
        "p_value": sign_test(gained, lost) if agree else 1.0,
    }


def numbered(clusters: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return each cluster's number, in order of appearance."""
    numbers: dict[Any, int] = {}
    return np.array([numbers.setdefault(one, len(numbers)) for one in clusters], np.int64)


def no_longer_ends(endings: Json | None) -> bool:
    """Return whether answers that the base ended run on to the limit in the tuned model: by the exact test, or in half of those."""
    if endings is None or endings["tuned"] >= endings["base"]:
        return False
    return bool(endings["p_value"] <= LEVEL or 2 * endings["only_base"] >= endings["base"])


def judge(loss: Json, difference: Difference, passed: dict[str, Json], trained_on: str = "") -> Json:
    """Return `verdict`, `rows_needed`, `why` and the corrected p-values.

    passed: other paired tests by name. trained_on: in words, that the rows are those of training, which can show nothing but memory.
    """
    p_values = {name: one["p_value"] for name, one in passed.items() if one["only_base"] + one["only_tuned"]}
    signs = {name: one["only_tuned"] - one["only_base"] for name, one in passed.items()}
    if difference.p_value is not None:
        p_values["loss"] = difference.p_value
        signs["loss"] = -1 if difference.value > 0 else 1
    corrected = holm(p_values)
    sure = {name for name, p_value in corrected.items() if p_value <= LEVEL}
    low, high = loss["interval"] or (0.0, 0.0)
    if low <= 0 <= high or max(-low, high) < MARGIN:
        sure.discard("loss")  # the bootstrap does not bear it, or it is of no account
    better, worse = {name for name in sure if signs[name] > 0}, {name for name in sure if signs[name] < 0}
    verdict, why = _word(loss, better, worse, corrected, trained_on)
    open_still = verdict == "cannot_tell" and not trained_on and not (better or worse)  # more rows end no contradiction
    why += "".join(_questions_needed(passed)) if open_still else ""
    return {"verdict": verdict, "why": why, "rows_needed": _needed(loss, difference) if open_still else None, "p_values": corrected}


def _word(loss: Json, better: set[str], worse: set[str], corrected: dict[str, float], trained_on: str) -> tuple[str, str]:
    if trained_on:
        return "cannot_tell", trained_on
    if better and worse:
        return "cannot_tell", f"better by {', '.join(sorted(better))}, worse by {', '.join(sorted(worse))}"
    if better or worse:
        word, names = ("better", better) if better else ("worse", worse)
        tests = f", corrected for {len(corrected)} tests" if len(corrected) > 1 else ""
        return word, "; ".join(f"{name} ({chance(corrected[name])}{tests})" for name in sorted(names))
    low, high = loss["interval"] or (-math.inf, math.inf)
    clusters = loss["clusters"]
    if low > -MARGIN and high < MARGIN and clusters >= FEWEST_ALIKE:
        return "same", f"the loss differs by less than {MARGIN} nats a token ({low:+.4f} to {high:+.4f})"
    if clusters < FEWEST:
        return "cannot_tell", f"fewer than {FEWEST} clusters of rows"
    if _alike(loss):
        return "cannot_tell", f"the loss differs alike in {clusters} clusters of rows; of fewer than {FEWEST_ALIKE}, others may hide"
    return "cannot_tell", "no test is certain, and the difference may be too large to ignore"


def _alike(loss: Json) -> bool:
    """Return whether too few clusters differ by about the same, so that one of another kind may have been missed."""
    low, high = loss["interval"] or (0.0, 0.0)
    return FEWEST <= loss["clusters"] < FEWEST_ALIKE and (low == high or (low > -MARGIN and high < MARGIN))


def _needed(loss: Json, difference: Difference) -> int | None:
    """Return the fewest clusters of rows by which the loss would show what was seen here; None where unknown."""
    if _alike(loss):
        return FEWEST_ALIKE
    if difference.error is None:
        return None
    return rows_for(difference.value if abs(difference.value) > MARGIN else MARGIN, difference.error, difference.clusters)


def _questions_needed(passed: dict[str, Json]) -> Iterator[str]:
    """Yield, test by test, how many questions would show what was seen of their answers: they are no rows, or a part of them."""
    for name, one in passed.items():
        seen = [int(one[key if key in one else other]) for key, other in _OF_CLUSTERS]
        if (number := pairs_for(*seen)) is not None:
            yield f"; about {number:,} questions would tell by {name} ({seen[-1]:,} were asked)"
