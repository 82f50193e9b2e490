"""Put the folds of a walk-forward together: what was gained over naive forecasts, and what trades would have earned. Pure."""

from __future__ import annotations

from typing import Any

from holdfast.base.files import Json
from holdfast.base.intervals import reach, verdict


def together(folds: list[Json]) -> Json:
    """Combine evaluations of folds into {gain: {mean, interval}, verdict, says, trades}, each judged by its own best naive forecast."""
    gain = _pooled([fold["gain"] for fold in folds], [fold["rows"] for fold in folds])
    found: Json = {"gain": gain, "verdict": verdict(gain["interval"])}
    deals = [fold["trades"] for fold in folds if "trades" in fold]
    if deals:
        rules = {name: _rule([deal["rules"][name] for deal in deals]) for name in deals[0]["rules"]}
        over = _pooled([deal["gain"] for deal in deals], [deal["rules"]["model"]["trades"] or 1 for deal in deals])
        found["trades"] = {"rules": rules, "gain": over, "verdict": verdict(over["interval"]), "cost": deals[0]["cost"]}
    return found | {"says": says(found, len(folds))}


def says(found: Json, folds: int) -> str:
    """Say what all folds show, in a sentence."""
    words = {
        "better": "better than naive forecasts",
        "worse": "worse than naive forecasts; nothing is predicted",
        "cannot_tell": "no better than naive forecasts, as far as these rows can tell; nothing is predicted",
    }
    text = f"over {folds} folds {words[found['verdict']]}: gained {_told(found['gain'])} a row"
    if "trades" not in found:
        return text
    beats = {"better": "more", "worse": "less", "cannot_tell": "no more, as far as they can tell,"}[found["trades"]["verdict"]]
    model = found["trades"]["rules"]["model"]
    return (
        f"{text}. {model['trades']:,} trades after costs: {_told(model['net_return'])} each, {beats} than the best rule without a network"
    )


def _rule(parts: list[Json]) -> Json:
    net = _pooled([part["net_return"] for part in parts], [max(1, part["trades"]) for part in parts])
    return {"trades": sum(part["trades"] for part in parts), "net_return": net, "total": sum(part["total"] for part in parts)}


def _pooled(parts: list[Json], weights: list[int]) -> dict[str, Any]:
    known = [(part["mean"], weight) for part, weight in zip(parts, weights, strict=True) if part["mean"] is not None]
    mean = sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
    return {"mean": mean, "interval": reach([block for part in parts for block in part["blocks"]])}


def _told(gain: Json) -> str:
    if gain["mean"] is None:
        return "nothing"
    return f"{gain['mean']:.3g}" + (f" ({gain['interval'][0]:.3g} to {gain['interval'][1]:.3g})" if gain["interval"] else "")
