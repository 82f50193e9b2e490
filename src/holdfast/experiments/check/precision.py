"""Item `precision`: the same steps from the same state in fp32, bf16 and fp16: where they part, by how much, in which layer first."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from holdfast.base.files import Json
from holdfast.experiments.check.bench import TOLERANCES, Bench, Item, not_done
from holdfast.experiments.laboratory import finished, how, succeeded

SHAPES = ("shortest", "longest", "fullest", "awkward")
_ALL_S = 240.0  # after which nothing is begun, and what is under way is ended
_LATE = f"no end within {_ALL_S:.0f} s"
_LABELS, _WIDEST = 256, 4.0  # of a shape that the tolerances of 16 bits are for; times as wide at the most, where it has fewer
_WARM = 3  # steps before the state they all begin from: a fresh adapter has half of its gradients 0


def precision(bench: Bench) -> Item:
    """Compute the hardest shapes in each number format and judge the run's own; the others are told. For some minutes at most."""
    bench.until = time.monotonic() + _ALL_S
    state = _within(
        bench, 1 / 3, {"dtype": "fp32"}, steps=_WARM, rate=bench.config.train.lr, most_tokens=bench.most_tokens, leave_state=True
    )
    if not succeeded(state):
        return _of_reference(bench, state)
    shapes: Json = {"from_state": state["folder"], "still": True, "rows": "shapes"}
    reference = _within(bench, 1 / 2, {"dtype": "fp32"}, steps=len(SHAPES), keep=True, **shapes)
    if not succeeded(reference):
        return _of_reference(bench, reference)
    found: Json = {}
    for dtype in dict.fromkeys((bench.dtype, "bf16", "fp16")):
        if dtype != "fp32":
            outcome = _within(bench, 1.0, {"dtype": dtype}, steps=len(reference["rows"]), against=reference["folder"], **shapes)
            found[dtype] = apart(dtype, reference, outcome)
    _forget(reference, state)
    return _judged(bench, found, len(reference["rows"]))


def _within(bench: Bench, share: float, settings: Json, **request: Any) -> Json:
    """Ask for a course that begins no step after a share of the time that is left, and is ended when that is up."""
    left = bench.until - time.monotonic()
    if left <= 0:
        return {"ending": _LATE}
    outcome = bench.course(settings, most_seconds=share * left, most_s=left, **request)
    return outcome if finished(outcome) or time.monotonic() < bench.until else {"ending": _LATE}


def apart(dtype: str, reference: Json, outcome: Json) -> Json:
    """Measure how far a course is from the reference, step by step: {holds, ...}; holds: None where it could not be computed here."""
    if not finished(outcome):
        return {"holds": None, "why": how(outcome)}
    worst = {"loss": 0.0, "gradient": 0.0, "scale": 0.0}
    facts: Json = {"holds": True, "why": ""}
    for number, (theirs, mine) in enumerate(zip(reference["rows"], outcome["rows"], strict=False)):
        shape = SHAPES[number] if number < len(SHAPES) else f"step {number + 1}"
        if not mine["finite"]:
            layer = next((one["layer"] for one in mine.get("layers", ()) if not one["finite"]), None)
            where = f"first in {layer}" if layer else "in no layer's output, so in the loss or the backward pass"
            return facts | {"holds": False, "why": f"not finite at the {shape} shape, {where}", "first_layer": layer, "shape": shape}
        gaps = _gaps(theirs, mine)
        limits = allowed(dtype, theirs.get("labels"))
        worst = {name: max(worst[name], gaps[name]) for name in worst}
        if facts["holds"] and (over := [name for name in worst if gaps[name] > limits[name]]):
            layer = first_apart(mine["layers"], limits["layer"])
            what = {"loss": "the loss", "gradient": "the gradient", "scale": "the gradient's size"}[over[0]]
            told = f"{what} is off by {gaps[over[0]]:.2%} at the {shape} shape ({limits[over[0]]:.2%} allowed)"
            told += f", first in {layer}" if layer else f", in no layer's output: the gradient of {mine['worst']} most"
            facts |= {"holds": False, "why": told, "first_layer": layer, "shape": shape}
    layers = [row["layers"] for row in outcome["rows"] if row.get("layers")]
    most = max((one for row in layers for one in row), key=lambda one: one["gap"] or 0.0, default=None)
    facts |= {"shapes": min(len(reference["rows"]), len(outcome["rows"]))}
    facts |= {"loss_gap": worst["loss"], "gradient_gap": worst["gradient"], "scale_gap": worst["scale"]}
    return facts | {"most_apart": most and most["layer"], "layer_gap": most and most["gap"]}


def allowed(dtype: str, labels: int | None) -> dict[str, float]:
    """Return how far a shape may be off. Each label's loss is rounded by itself in 16 bits: the fewer there are, the less averages out."""
    limits = TOLERANCES[dtype]
    if dtype == "fp32" or not labels:
        return limits
    wider = min(_WIDEST, max(1.0, math.sqrt(_LABELS / labels)))
    return limits | {name: wider * limits[name] for name in ("loss", "scale")}


def _gaps(theirs: Json, mine: Json) -> dict[str, float]:
    loss = abs(mine["loss"] - theirs["loss"]) / max(abs(theirs["loss"]), 1e-9)
    gradient = mine["gradient_gap"] if mine["gradient_gap"] is not None else float("inf")
    return {"loss": loss, "gradient": gradient, "scale": abs((mine["scale"] if mine["scale"] is not None else float("inf")) - 1)}


def first_apart(layers: list[Json], limit: float) -> str | None:
    """Return the first layer whose output is further off than `limit`; None where none is."""
    return next((one["layer"] for one in layers if one["gap"] is None or one["gap"] > limit), None)


def _judged(bench: Bench, found: Json, shapes: int) -> Item:
    """Judge the run's own number format. shapes: how many of them fp32 computed in its time."""
    own = bench.dtype
    numbers: Json = {"own": own, "shapes": shapes, **found}
    told = "; ".join(f"{dtype}: {facts['why'] or _course(facts)}" for dtype, facts in found.items())
    done = shapes if own == "fp32" else found[own].get("shapes", 0)
    if own != "fp32" and found[own]["holds"] is False:
        other = next((dtype for dtype, facts in found.items() if facts["holds"]), "fp32")
        following = bench.command("check", f"train.precision={other}", "--only precision")
        return Item("precision", "failed", numbers, f"the run computes in {own}, which does not hold; {told}", following)
    if own != "fp32" and found[own]["holds"] is None and found[own]["why"] != _LATE:
        return Item("precision", "unknown", numbers, told, bench.command("check", "train.precision=fp32", "--only precision"))
    if done < len(SHAPES):
        return _too_slow(bench, numbers, f"{done} of {len(SHAPES)} shapes were computed in {own}{f'; {told}' if told else ''}")
    return Item("precision", "passed", numbers, f"the run computes in {own}{', the reference' if own == 'fp32' else ''}; {told}")


def _too_slow(bench: Bench, numbers: Json, seen: str) -> Item:
    """Return an unknown item with what was seen in the time there was."""
    shorter = bench.command("check", "train.max_tokens=LESS", "--only precision")
    told = f"no answer within {_ALL_S:.0f} s on this machine: {seen}"
    return Item("precision", "unknown", numbers, told, f"shorter rows take less time: {shorter}")


def _course(facts: Json) -> str:
    return f"loss within {facts['loss_gap']:.2%}, gradient within {facts['gradient_gap']:.1%} of fp32"


def _of_reference(bench: Bench, outcome: Json) -> Item:
    """Return an item for fp32 itself failing: no number format is to blame."""
    if outcome["ending"] == _LATE:
        return _too_slow(bench, {"own": bench.dtype, "shapes": 0}, "fp32, the reference, did not come to its end")
    if not finished(outcome):
        return not_done("precision", outcome, bench.command("check", "--only first"))
    step = outcome["rows"][-1]["step"]
    told = f"fp32 is not finite at step {step} either: not the number format, but weights, data or rate"
    return Item("precision", "failed", {"own": bench.dtype, "fp32": {"holds": False, "step": step}}, told, bench.command("doctor"))


def _forget(*outcomes: Json) -> None:
    """Remove what was kept to compare: it may be as large as the model."""
    for outcome in outcomes:
        for file in [*Path(outcome["folder"]).glob("*.safetensors"), *Path(outcome["folder"]).glob("*.bin")]:
            file.unlink(missing_ok=True)
