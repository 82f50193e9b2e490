"""Item `speed`: the fullest step's speed and memory against the plan, the last run here, and what this device multiplies at its best."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.base.units import gib
from holdfast.experiments.check.bench import Bench, Item, not_done
from holdfast.experiments.laboratory import finished

_STEPS, _MOST_S, _SLOWER = 4, 60.0, 0.5


def speed(bench: Bench) -> Item:
    """Time the fullest step, and products of the run's own shapes."""
    size: Json = {"most_tokens": 4 * bench.most_tokens, "most_seconds": _MOST_S, "least_steps": 2}
    outcome = bench.course(deterministic=False, rows="fullest", steps=_STEPS, **size)
    if not finished(outcome):
        return not_done("speed", outcome, bench.command("plan"))
    rates = [row["tokens"] / row["seconds"] for row in outcome["rows"] if row["seconds"] > 0]
    rate = max(rates[1:] or rates)
    shapes = bench.lab.ask("products", settings=bench.settings)
    square = shapes.get("square_tflops")
    best = max([square or 0.0, *(shapes.get("tflops") or {}).values()])  # other work may have held up any of them
    reached = bench.work * rate / (best * 1e12) if best else None
    capacity, last = bench.plan.capacity_bytes, bench.last_run or {}
    numbers: Json = {
        "tokens_per_second": round(rate, 1),
        "tokens": outcome["rows"][-1]["tokens"],
        "peak_bytes": outcome["peak_bytes"],
        "planned_bytes": bench.plan.peak_bytes,
        "capacity_bytes": capacity,
        "product_tflops": shapes.get("tflops"),
        "square_tflops": square,
        "share_of_products": None if reached is None else round(reached, 4),
        "last_run": last or None,
    }
    if capacity and (outcome["peak_bytes"] or 0) > capacity:
        told = f"the fullest step takes {gib(outcome['peak_bytes'])} of {gib(capacity)}"
        return Item("speed", "failed", numbers, told, bench.command("plan"))
    before = last.get("tokens_per_second")
    course = f"{rate:,.0f} tokens/s at the fullest step"
    course += f", {reached:.0%} of what this device multiplies at its best" if reached is not None else ""
    others = f"; the last run here{'' if last.get('alike') else ', of another config,'} had {before:,.0f}" if before else ""
    if before and last["alike"] and rate < _SLOWER * before:
        told = f"{course}{others}"
        return Item("speed", "failed", numbers, told, "holdfast doctor; is the device busy with other work?")
    return Item("speed", "passed", numbers, course + (others or "; no run here to compare with"))
