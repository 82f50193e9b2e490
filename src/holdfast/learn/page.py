"""A policy's rounds as a page: what each took, how each domain fared at the gate, and what is forgotten over the rounds. Pure."""

from __future__ import annotations

from markupsafe import Markup

from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.report.pages import page_template
from holdfast.report.svg import Marker, line_chart

_GENERAL = "general answers"


def rounds_page(name: str, rounds: list[Json], margin: float) -> str:
    """Render the page of the `answer`s of rounds that are over, in order."""
    measured = [one | {"groups": groups_of(one)} for one in rounds if one["domains"]]
    names = list(dict.fromkeys(group for one in measured for group in one["groups"]))
    names = [one for one in names if one != _GENERAL] + [_GENERAL] * (_GENERAL in names)
    refused = [Marker(one["round"], "no", f"round {one['round']}: {one['why']}") for one in measured if not one["promoted"]]
    charts, lost = [], []
    for group in names:
        losses = losses_in_place(measured, group)
        if group == "new" or len(losses) < 2:  # new rows are others in each round
            continue
        xs, ys = [x for x, _ in losses], [y for _, y in losses]
        shown = [marker for marker in refused if marker.x <= xs[-1]]
        charts.append((group, Markup(line_chart(xs, ys, "nats a token", shown, over="rounds"))))
        lost.append((group, ys[0], min(ys), ys[-1], ys[-1] - min(ys), ys[-1] - min(ys) > margin))
    cells = [(group, [_cell(one["groups"].get(group), margin, group) for one in measured]) for group in names]
    last = next((one for one in reversed(rounds) if one["promoted"]), None)
    facts = {"name": name, "rounds": rounds, "measured": measured, "cells": cells, "charts": charts, "lost": lost, "margin": margin}
    return page_template("learned.html").render(**facts, last=last, version=__version__)


def groups_of(one: Json) -> Json:
    """Return the gate's measurements of a round: new rows, each domain, general answers."""
    groups: Json = one["domains"] | ({_GENERAL: one["general"]} if one["general"] else {})
    return groups


def losses_in_place(measured: list[Json], group: str) -> list[tuple[float, float]]:
    """Return (round, loss of the version in place after it) of one group, beginning with the version before the first promotion."""
    found: list[tuple[float, float]] = []
    for one in measured:
        if one["promoted"] and (of := one["groups"].get(group)):
            found += [] if found else [(one["round"] - 1, of["loss"]["base"])]
            found.append((one["round"], of["loss"]["tuned"]))
    return found


def _cell(of: Json | None, margin: float, group: str) -> tuple[str, str]:
    """Return (class, words) of how a group fared in a round."""
    if not of:
        return "quiet", "-"
    loss, interval = of["loss"], of["loss"]["interval"]
    words = f"{loss['difference']:+.3f}" + (f" [{interval[0]:+.3f}, {interval[1]:+.3f}]" if interval else "")
    beyond = of["verdict"] != "better" if group == "new" else loss["difference"] > margin
    return "bad" if beyond else "good" if of["verdict"] == "better" else "", words
