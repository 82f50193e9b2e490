"""Whether an exported model computes what base + adapter compute: figures from what an engine gave back. Pure; runs nothing.

Logits are compared with each position's mean taken out, because a softmax does not see it and llama.cpp tells log-probabilities.
What they may differ by is a share of what was learned, where that is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from holdfast.base.files import Json
from holdfast.export.learned import learned_of, lost

Floats: TypeAlias = npt.NDArray[np.float64]
Logits: TypeAlias = npt.NDArray[np.float32]
Whole: TypeAlias = tuple[Logits, Logits, Logits | None]
Budget: TypeAlias = dict[str, float]  # the largest nmse and kl_per_token, the smallest top1_agreement; learned: nmse by the base's
EXACT: Budget = {"nmse": 1e-4, "learned": 0.01, "kl_per_token": 1e-3, "top1_agreement": 0.95}
NARROWED: Budget = {"nmse": 1e-3, "kl_per_token": 1e-2, "top1_agreement": 0.95}  # where a wider file is proven EXACT: rounding alone
_TIE = 2.0  # times the largest difference of two logits: what an argmax may turn on


@dataclass(frozen=True)
class Side:
    """What one engine gave: logits [places, tokens] at the same tokens for both sides, greedy answers, token numbers of the same
    conversations and texts; ends: tokens at which it stops, pad: what it fills with; base: the logits of the base alone, where asked."""

    logits: Logits
    answers: list[Json]
    chats: list[list[int]]
    texts: list[list[int]]
    ends: tuple[int, ...]
    pad: int | None
    base: Logits | None = None


@dataclass(frozen=True)
class Comparison:
    """The figures, and every reason why the two are not equal; none where they are. numeric: the reasons are of logits alone."""

    figures: Json
    reasons: list[str] = field(default_factory=list)
    numeric: bool = True


def compare(
    reference: Side, exported: Side, engine: str, budget: Budget, end: int | None, exact: bool, whole: Whole | None = None
) -> Comparison:
    """Hold an exported model against its reference; of its figures, kl_error is the standard error of kl_per_token.

    end: the token that ends an answer; exact: greedy answers have to be equal, too.

    whole: logits of all tokens at some places (reference, exported, base), where those of the sides are of the likeliest.
    """
    ours, theirs = centred(reference.logits), centred(exported.logits)
    whole = whole or (reference.logits, exported.logits, reference.base)
    nmse = nmse_of(whole[0], whole[1])
    each = kl_of_each(ours, theirs)
    kl = float(each.mean())
    top1 = float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean())
    greedy, unequal = _greedy(reference, exported, float(np.abs(ours - theirs).max()))
    token_ids = reference.chats == exported.chats and reference.texts == exported.texts
    stops = end is None or (end in exported.ends and (end != exported.pad or exported.pad == reference.pad))  # a base may pad with its end
    figures: Json = {
        "engine": engine,
        "nmse": nmse,
        "kl_per_token": kl,
        "kl_error": float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else 0.0,
        "top1_agreement": top1,
        "greedy_equal": greedy["equal"] == len(reference.answers),
        "greedy": greedy,
        "token_ids_equal": token_ids,
        "token_ids_compared": len(reference.chats) + len(reference.texts),
        "stops": stops,
        "budget": {name: value for name, value in budget.items() if np.isfinite(value)},
        "prompts": len(reference.answers),
        "positions": len(ours),
        "learned": None if whole[2] is None else learned_of(whole[0], whole[2], whole[1]),
    }
    reasons = beyond(figures, budget)
    if exact and unequal:
        reasons.append(f"{len(unequal)} of {len(reference.answers)} greedy answers differ, the first at prompt {unequal[0] + 1}")
    numeric = token_ids and stops
    if not token_ids:
        reasons.append(_differing_tokens(reference, exported))
    if not stops:
        what = "its pad token" if end in exported.ends else f"none of those it stops at ({', '.join(map(str, exported.ends)) or 'none'})"
        reasons.append(f"token {end}, which ends the answers of training, is {what}")
    return Comparison(figures, reasons, numeric)


def beyond(figures: Json, budget: Budget) -> list[str]:
    """List, in words, which figures exceed the budget."""
    nmse, kl, top1 = figures["nmse"], figures["kl_per_token"], figures["top1_agreement"]
    found = []
    if not np.isfinite([nmse, kl]).all():
        found.append("its logits are not finite")
    if nmse > budget["nmse"]:
        found.append(f"NMSE of its logits is {nmse:.2e}, {budget['nmse']:.1e} is allowed")
    if kl > budget["kl_per_token"]:
        found.append(f"KL per token is {kl:.2e} nats, {budget['kl_per_token']:.1e} is allowed")
    if top1 < budget["top1_agreement"]:
        found.append(f"the likeliest token is the same at {top1:.1%} of positions, {budget['top1_agreement']:.0%} is asked for")
    return found + _of_learned(figures, budget)


def _of_learned(figures: Json, budget: Budget) -> list[str]:
    """List what is too much beside what was learned; where the budget names no share, half of it has to be there."""
    learned, share = figures.get("learned"), budget.get("learned", float("inf"))
    if learned is None or learned["kept"] is None:
        return []
    if lost(learned):
        return [f"it has {max(0.0, learned['kept']):.0%} of what was learned: the base alone differs by NMSE {learned['nmse']:.1e}"]
    if figures["nmse"] > share * learned["nmse"]:
        part = figures["nmse"] / learned["nmse"]
        return [f"it differs by {part:.1%} of what was learned (NMSE {learned['nmse']:.1e}), {share:.0%} is allowed"]
    return []


def nmse_of(reference: Logits, other: Logits) -> float:
    """Compute the squared differences of two sides' logits over the square of the first's, each position's mean taken out."""
    ours, theirs = centred(reference), centred(other)
    return float(((ours - theirs) ** 2).sum() / max(float((ours**2).sum()), 1e-30))


def centred(logits: Logits) -> Floats:
    values = logits.astype(np.float64)
    found: Floats = values - values.mean(axis=1, keepdims=True)
    return found


def log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def kl_of_each(reference: Floats, other: Floats) -> Floats:
    """Compute KL(reference || other) of each position, in nats."""
    one, two = log_softmax(reference), log_softmax(other)
    found: Floats = (np.exp(one) * (one - two)).sum(axis=1)
    return found


def _greedy(reference: Side, exported: Side, noise: float) -> tuple[Json, list[int]]:
    """Count the greedy answers that are equal, part at a near-tie, or differ; return that and the prompts of the last.

    A near-tie: the reference's two best are nearer than rounding. margin: the largest of those.
    """
    ties, apart = [], []
    for at, (ours, theirs) in enumerate(zip(reference.answers, exported.answers, strict=True)):
        if ours["ids"] == theirs["ids"] and ours["ended"] == theirs["ended"]:
            continue
        parted = next((n for n, (a, b) in enumerate(zip(ours["ids"], theirs["ids"], strict=False)) if a != b), None)
        where = min(len(ours["ids"]), len(theirs["ids"])) if parted is None else parted
        if where >= len(ours["margins"]) or ours["margins"][where] > _TIE * noise:
            apart.append(at)
        else:
            ties.append(float(ours["margins"][where]))
    equal = len(reference.answers) - len(ties) - len(apart)
    return {"equal": equal, "near_tie": len(ties), "apart": len(apart), "margin": max(ties, default=None)}, apart


def _differing_tokens(reference: Side, exported: Side) -> str:
    for what, ours, theirs in (("conversation", reference.chats, exported.chats), ("text", reference.texts, exported.texts)):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=False), 1):
            if one != other:
                at = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
                return f"{what} {number} is {len(other)} tokens, in training {len(one)}; token {at + 1} is the first that differs"
    return "it renders another number of conversations"


def first_layer(reference: Logits, exported: Logits, most: float) -> str | None:
    """Find the first of the hidden states [layers + 1, places, width] that differs by more than `most` (NMSE); None for none."""
    if reference.shape != exported.shape:
        return f"the models have {len(reference) - 1} and {len(exported) - 1} layers"
    for number, (ours, theirs) in enumerate(zip(reference, exported, strict=True)):
        one, other = ours.astype(np.float64), theirs.astype(np.float64)
        if not ((one - other) ** 2).sum() <= most * (one**2).sum():
            return "the embedding" if number == 0 else f"layer {number - 1}"
    return None
