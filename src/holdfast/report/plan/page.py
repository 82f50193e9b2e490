"""The page of `plan --why`: where each byte goes over a step, as stacked areas. One file: no script, no font, no request."""

from __future__ import annotations

from html import escape

from holdfast.base.files import Json
from holdfast.base.units import gib
from holdfast.config.config import Config
from holdfast.planning.memory.demand import Demand
from holdfast.report.pages import plain_page
from holdfast.report.plan.lines import WORDS, verdict
from holdfast.report.words import what_is_trained
from holdfast.run.plan import Plan

WIDTH, HEIGHT = 960, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 16, 18, 34
_COLOURS = {
    "weights": "#5b6b7a",
    "adapter": "#2f6f9f",
    "gradients": "#4d9ac7",
    "optimizer": "#93c4dd",
    "activations": "#e0a13c",
    "logits": "#c8553d",
    "workspace": "#8d7bb5",
}
_STYLE = """
i { display: inline-block; width: .8em; height: .8em; margin-right: .5em }
@media (max-width: 640px) { main svg text { font-size: 27px }
  main svg text.size { text-anchor: start; transform: translate(14px, -12px) }
  main svg text.size { paint-order: stroke; stroke: var(--card); stroke-width: 6px } }
.limit { stroke: var(--bad); stroke-dasharray: 6 4 } .mark { stroke: var(--ink); stroke-opacity: .35; stroke-dasharray: 2 3 }
"""


def plan_page(config: Config, model: str, plan: Plan, demand: Demand) -> str:
    """Render the plan's page as HTML."""
    parts = [
        f'<div class="card">{stacked(demand.curve or {}, plan)}</div>',
        _kinds(plan),
        "<h2>The largest blocks at the peak</h2>",
        _table(["bytes", "for", "made by"], [[gib(size), WORDS[kind], escape(_place(made))] for size, kind, made in demand.largest]),
    ]
    if plan.alternatives:
        rows = [
            [_told(other.fits), gib(other.peak_bytes), f"<code>{escape(other.change)}</code>", _price(other.slower)]
            for other in plan.alternatives
        ]
        parts += ["<h2>Instead</h2>", _table(["", "peak", "change", "time of a step"], rows)]
    parts += ["<h2>How this was found</h2>", "<ul>", *(f"<li>{escape(reason)}</li>" for reason in plan.reasons), "</ul>"]
    title = f"{model}: memory of {what_is_trained(config.adapter)}"
    return plain_page(title, verdict(plan), "".join(parts), bad=None if plan.fits is None else not plan.fits, style=_STYLE)


def stacked(curve: Json, plan: Plan) -> str:
    """Draw bytes by kind over a step, stacked, and the limit, where there is one near enough to be seen."""
    rows: list[list[int]] = curve.get("bytes", [])
    if not rows:
        return '<p class="quiet">no curve was traced</p>'
    kinds, moments = curve["kinds"], curve["moments"]
    most = max(map(sum, rows))
    limit: int | None = None
    if plan.capacity_bytes is not None:
        limit = plan.capacity_bytes - (plan.reserve_bytes or 0) - plan.bytes.context - plan.bytes.snapshot - plan.bytes.allocator
    top = max(most, limit) if limit is not None and limit < 1.6 * most else most
    across: float = (WIDTH - _LEFT - _RIGHT) / max(1, moments[-1])
    up: float = (HEIGHT - _TOP - _BOTTOM) / (top * 1.04)

    def x(moment: int) -> float:
        return _LEFT + moment * across

    def y(size: float) -> float:
        return HEIGHT - _BOTTOM - size * up

    drawn, sizes = [], []
    for share in range(5):
        size = top * share / 4
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(size):.1f}" y2="{y(size):.1f}"/>')
        sizes.append(f'<text x="{_LEFT - 8}" y="{y(size) + 4:.1f}" class="size" text-anchor="end">{gib(size)}</text>')
    below = [0] * len(rows)
    for at, kind in enumerate(kinds):
        above = [low + row[at] for low, row in zip(below, rows, strict=True)]
        if above != below:
            line = [f"{x(moment):.1f},{y(size):.1f}" for moment, size in zip(moments, above, strict=True)]
            back = [f"{x(moment):.1f},{y(size):.1f}" for moment, size in zip(reversed(moments), reversed(below), strict=True)]
            title = escape(f"{WORDS[kind]}: up to {gib(max(row[at] for row in rows))}")
            drawn.append(f'<polygon fill="{_COLOURS[kind]}" points="{" ".join(line + back)}"><title>{title}</title></polygon>')
        below = above
    drawn += [*_marks(curve["marks"], x), *sizes]  # which a narrow page writes over the areas
    if limit is not None and 0 < limit <= top:
        drawn.append(f'<line class="limit" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>')
        drawn.append(f'<text x="{WIDTH - _RIGHT}" y="{y(limit) - 5:.1f}" text-anchor="end">room for a step: {gib(limit)}</text>')
    label = escape(f"bytes over a step, {gib(most)} at the peak")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _marks(marks: list[list[object]], x: object) -> list[str]:
    drawn: list[str] = []
    shown: set[object] = set()
    for moment, what in marks:
        if what not in ("forward", "backward", "update") or what in shown:
            continue
        shown.add(what)
        place = x(moment)  # type: ignore[operator]
        drawn.append(f'<line class="mark" x1="{place:.1f}" x2="{place:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        end = what == "update"
        anchor, shift = ("end", -4) if end else ("start", 4)
        drawn.append(f'<text x="{place + shift:.1f}" y="{HEIGHT - _BOTTOM + 18}" text-anchor="{anchor}">{what}</text>')
    return drawn


def _kinds(plan: Plan) -> str:
    rows = []
    for kind, size in plan.bytes.by_kind().items():
        if size:
            colour = _COLOURS.get(kind, "#c9d1d8")
            rows.append([f'<i style="background:{colour}"></i>{WORDS[kind]}', gib(size), f"{size / max(1, plan.peak_bytes):.1%}"])
    return _table(["at the peak", "bytes", ""], rows, "")


def _table(head: list[str], rows: list[list[str]], kind: str = "stack") -> str:
    cells = "".join(f"<th>{name}</th>" for name in head)
    lines = "".join("<tr>" + "".join(map(_cell, row, head)) + "</tr>" for row in rows)
    return f'<div class="card scroll" tabindex="0"><table class="{kind}"><tr>{cells}</tr>{lines}</table></div>'


def _place(made: str) -> str:
    """Return the module that made a block, without the operator and what PEFT wraps around it."""
    return (made.partition(" ")[2] or made).removeprefix("base_model.model.")


def _cell(cell: str, head: str) -> str:
    kind = ' class="n"' if cell.endswith(("iB", "%")) else ""
    named = f' data-head="{head}"' if head else ""
    return f"<td{kind}{named}>{cell}</td>"


def _told(fits: bool | None) -> str:
    return {True: "fits", False: "does not fit", None: ""}[fits]


def _price(slower: float | None) -> str:
    return "unknown" if slower is None else f"{slower:.2f} x"
