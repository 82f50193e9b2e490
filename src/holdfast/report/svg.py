"""Draw line charts and histograms as inline SVG. Data in, markup out: no script, no font, no request, every text escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 68, 12, 14, 30
_LETTER = 8  # as wide as a letter of a label may be
_POINTS = 500  # more cannot be told apart at this width
_ROWS = 20  # of the table behind a chart


@dataclass(frozen=True)
class Marker:
    """A moment worth a vertical line: where, its label, what a pointer held over it says."""

    x: float
    label: str
    title: str


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.first + share * (self.last - self.first)

    def ticks(self, wanted: int) -> list[float]:
        return _ticks(self.low, self.high, wanted)


class _LogScale(_Scale):
    """A scale on which each factor takes the same room; low is above 0."""

    def __call__(self, value: float) -> float:
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.first + share * (self.last - self.first)

    def ticks(self, wanted: int) -> list[float]:
        tens = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        found = [factor * 10.0**power for power in tens for factor in (1, 2, 5) if self.low <= factor * 10.0**power <= self.high]
        return found[:: max(1, round(len(found) / wanted))]


def line_chart(
    xs: Sequence[float], ys: Sequence[float], unit: str, markers: Sequence[Marker] = (), smooth: bool = False, over: str = "steps"
) -> str:
    """Draw a chart of ys over xs (of the unit `over`), and its table. Values that are not finite leave a gap; no data gives a sentence."""
    finite = sorted(y for y in ys if math.isfinite(y))
    if not finite:
        return '<p class="quiet">no data yet</p>'
    low, high = _limits(finite)
    x_scale = _Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    y_scale = _Scale(low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(x_scale, y_scale, unit)]
    if smooth and len(ys) >= 20:
        parts.append(_path(xs, ys, x_scale, y_scale, "raw"))
        parts.append(_path(xs, _smoothed(ys), x_scale, y_scale, "line"))
    else:
        parts.append(_path(xs, ys, x_scale, y_scale, "line"))
    parts += [_marker(marker, x_scale) for marker in markers if x_scale.low <= marker.x <= x_scale.high]
    label = escape(f"{unit} over {over}, from {_number(ys[0])} to {_number(ys[-1])}")
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    size = math.ceil(len(xs) / _ROWS)
    chosen = list(zip(xs, ys, strict=True))[::-size][::-1]  # the last among them
    return drawn + _table((over, unit or "value"), [(f"{x:,.6g}", _number(y)) for x, y in chosen])


def histogram(edges: Sequence[float], counts: Sequence[int], unit: str, cap: float | None = None) -> str:
    """Draw bars of `counts` between `edges`, on a scale of factors where these grow; `cap` draws a limit in."""
    if not counts:
        return '<p class="quiet">no data</p>'
    grow = edges[0] > 0 and len(edges) > 2 and edges[-1] - edges[-2] > 2 * (edges[1] - edges[0])
    x_scale = (_LogScale if grow else _Scale)(edges[0], max(edges[-1], cap or 0), _LEFT, WIDTH - _RIGHT)
    y_scale = _Scale(0, max(counts), HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(x_scale, y_scale, unit)]
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        x, top = x_scale(left), y_scale(count)
        title = f"{_number(left)} to {_number(right)}: {count}"
        width, height = max(1.0, x_scale(right) - x - 1), HEIGHT - _BOTTOM - top
        parts.append(f'<rect class="bar" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"><title>{title}</title></rect>')
    if cap is not None:
        parts.append(_marker(Marker(cap, "cap", f"longest row allowed: {_number(cap)}"), x_scale))
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(unit)} of rows">{"".join(parts)}</svg>'
    bins = [
        (f"{_number(left)} to {_number(right)}", f"{count:,}") for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    return drawn + _table((unit, "rows"), bins)


def _table(heads: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    """Make a table that opens below a picture: for who cannot see it, or wants to copy from it."""
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join(f'<tr><td class="n">{escape(x)}</td><td class="n">{escape(y)}</td></tr>' for x, y in rows)
    return f'<details class="numbers"><summary>in numbers</summary><table><tr>{head}</tr>{body}</table></details>'


def _limits(finite: Sequence[float]) -> tuple[float, float]:
    """Return the range of the axis: everything, unless a few values dwarf the rest by far; those then touch the edge."""
    low, high = finite[0], finite[-1]
    usual = finite[int(0.98 * (len(finite) - 1))]
    if len(finite) > 50 and high - low > 20 * max(usual - low, 1e-12):
        high = low + 3 * (usual - low)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return (0.0 if 0 <= low <= 0.3 * high else low - margin), high + margin


def _axes(x_scale: _Scale, y_scale: _Scale, unit: str) -> str:
    parts = []
    for value in y_scale.ticks(4):
        y = y_scale(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    for value in x_scale.ticks(6):
        x, name = x_scale(value), _number(value)
        ends = x + _LETTER * len(name) > WIDTH  # of a letter's full width, as wide as half of one on a phone
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="{"end" if ends else "middle"}">{name}</text>')
    base = HEIGHT - _BOTTOM
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>')
    parts.append(f'<text class="unit" x="{WIDTH - _RIGHT}" y="{_TOP + 2}" text-anchor="end">{escape(unit)}</text>')
    return "".join(parts)


def _marker(marker: Marker, x_scale: _Scale) -> str:
    x = x_scale(marker.x)
    fits = x + 3 + _LETTER * len(marker.label) <= WIDTH
    place = f'x="{x + 3:.1f}"' if fits else f'x="{x - 3:.1f}" text-anchor="end"'
    return (
        f'<g class="marker"><line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>'
        f'<text {place} y="{HEIGHT - _BOTTOM - 5}">{escape(marker.label)}</text><title>{escape(marker.title)}</title></g>'
    )


def _path(xs: Sequence[float], ys: Sequence[float], x_scale: _Scale, y_scale: _Scale, kind: str) -> str:
    pieces: list[list[tuple[float, float]]] = [[]]  # between gaps
    for x, y in _thinned(xs, ys):
        if math.isfinite(y):
            pieces[-1].append((x_scale(x), min(max(y_scale(y), _TOP), HEIGHT - _BOTTOM)))
        elif pieces[-1]:
            pieces.append([])
    lines = "".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in piece) for piece in pieces if len(piece) > 1)
    alone = [piece[0] for piece in pieces if len(piece) == 1]  # a path of one point draws nothing
    dots = "".join(f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in alone)
    return (f'<path class="{kind}" d="{lines}"/>' if lines else "") + dots


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Reduce to about `_POINTS` points, of each stretch its lowest and its highest, so no spike is lost; a gap where none is finite."""
    if len(xs) <= _POINTS:
        return list(zip(xs, ys, strict=True))
    size = math.ceil(2 * len(xs) / _POINTS)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(xs), size):
        whole = list(zip(xs[start : start + size], ys[start : start + size], strict=True))
        stretch = [point for point in whole if math.isfinite(point[1])] or whole[:1]
        chosen = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(chosen)
    return kept


def _smoothed(ys: Sequence[float]) -> list[float]:
    """Compute an exponential mean over about a thirtieth of the run."""
    weight = 1 - 1 / max(3.0, len(ys) / 30)
    mean: float | None = None
    smooth = []
    for y in ys:
        if math.isfinite(y):
            mean = y if mean is None else weight * mean + (1 - weight) * y
        smooth.append(mean if mean is not None else y)
    return smooth


def _ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round numbers between low and high, about `wanted` of them."""
    if high <= low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step) + 1)]


def _number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "not finite"
    if abs(value) >= 10_000 or abs(value) < 0.001:
        mantissa, exponent = f"{value:.5e}".split("e")
        return f"{mantissa.rstrip('0').removesuffix('.')}e{int(exponent)}"
    return f"{value:.6g}"
