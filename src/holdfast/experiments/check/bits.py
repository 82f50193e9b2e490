"""Items `order` and `resume`: a step replayed, split otherwise, and taken up by another process: the same bits, or how far off."""

from __future__ import annotations

from typing import Any

from holdfast.base.files import Json
from holdfast.experiments.check.bench import TOLERANCES, Bench, Item, not_done
from holdfast.experiments.laboratory import succeeded

_AT = 3  # the step that is looked at
_TWO: Json = {"least_samples": 2}  # rows, so that there is something to split


def order(bench: Bench) -> Item:
    """Compare a step run twice in one process and once in smaller micro-batches; check that the order sees each row once."""
    state = _before(bench)
    if not succeeded(state):
        return not_done("order", state, bench.command("check", "--only first"))
    once = _step(bench, state, keep=True, **_TWO)
    again = _step(bench, state, **_TWO)
    tokens = once["rows"][0]["tokens"] if succeeded(once) else 0
    split = _step(bench, state, settings={"micro_batch_tokens": max(1, tokens // 2)}, against=once["folder"], **_TWO)
    for outcome in (once, again, split):
        if not succeeded(outcome):
            return not_done("order", outcome, bench.command("check", "--only first"))
    drawn = bench.facts["rows"]["order"]
    gap, passes = split["rows"][0]["gradient_gap"], [one["rows"][0]["micro_batches"] for one in (once, split)]
    limit = 10 * TOLERANCES["fp32"]["gradient"] if bench.dtype == "fp32" else TOLERANCES[bench.dtype]["gradient"]
    numbers: Json = {"replayed_alike": _bits(once) == _bits(again), "split_gradient_gap": gap, "micro_batches": passes}
    numbers |= {"most_often": drawn["most_often"]}
    if not numbers["replayed_alike"]:
        told = f"step {_AT} computed twice from one state gives other bits: a kernel's sums have no fixed order"
        return Item("order", "failed", numbers, told, bench.command("check", "train.attention=eager", "--only order"))
    if gap is None or gap > limit:
        told = f"split into smaller micro-batches the step's gradient is off by {'what is not finite' if gap is None else f'{gap:.2%}'}"
        return Item("order", "failed", numbers, told, bench.command("check", "train.packing=false", "--only order"))
    if not drawn["alike"] or (drawn["most_often"] > 1 and not drawn["mixed"]):
        return Item("order", "failed", numbers, f"one epoch sees a row {drawn['most_often']} times", "report this: it is a bug")
    split_told = f"split otherwise: its gradient within {gap:.1e}" if passes[1] > passes[0] else "one row a step cannot be split otherwise"
    whole = drawn["rows"] == drawn["of"]
    epoch = "an epoch sees each row once" if whole else f"no row comes twice among the {drawn['rows']:,} of {drawn['of']:,} that are drawn"
    epoch = "rows are drawn by their sources' shares" if drawn["mixed"] else epoch
    told = f"step {_AT} replayed: the same bits{_kernels(bench)}; {split_told}; {epoch}"
    return Item("order", "passed", numbers, told)


def resume(bench: Bench) -> Item:
    """Compare a step after an undisturbed start with the same step in a fresh process that begins from the state before it."""
    whole = bench.course(steps=_AT, most_tokens=bench.most_tokens, bits=True)
    state = _before(bench)
    if not succeeded(whole) or not succeeded(state):
        return not_done("resume", whole if not succeeded(whole) else state, bench.command("check", "--only first"))
    bench.lab.let_go()
    resumed = _step(bench, state)
    if not succeeded(resumed):
        return not_done("resume", resumed, bench.command("check", "--only first"))
    same = _bits(resumed) == _bits(whole)
    numbers: Json = {"alike": same, "step": _AT, "weights_sha256": resumed["weights_sha256"]}
    if same:
        return Item(
            "resume",
            "passed",
            numbers,
            f"step {_AT} in a fresh process from the state before it: gradients and weights to the bit{_kernels(bench)}",
        )
    gap = abs(resumed["rows"][0]["loss"] - whole["rows"][-1]["loss"])
    told = f"step {_AT} in a fresh process is another one: loss off by {gap:.3g}, other bits of gradients or weights"
    return Item("resume", "failed", numbers | {"loss_gap": gap}, told, bench.command("check", "train.attention=eager", "--only resume"))


def _before(bench: Bench) -> Json:
    return bench.course(steps=_AT - 1, most_tokens=bench.most_tokens, leave_state=True)


def _kernels(bench: Bench) -> str:
    """Say so where the bits are those of deterministic kernels, and the run computes with others."""
    known = (bench.facts.get("settings") or {}).get("deterministic", True)
    return "" if known else " (with deterministic kernels; the run's own promise no bits: train.deterministic=true takes these)"


def _step(bench: Bench, state: Json, settings: Json | None = None, **request: Any) -> Json:
    return bench.course(settings, from_state=state["folder"], first=_AT, steps=1, most_tokens=bench.most_tokens, bits=True, **request)


def _bits(outcome: Json) -> tuple[str, str]:
    return outcome["rows"][-1]["gradients_sha256"], outcome["weights_sha256"]
