"""Bytes by kind over a step, at a few hundred moments: what a picture of it is drawn from. Pure."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.trainer.traced.peak import KINDS, kinds_of, start_of
from holdfast.trainer.traced.step import StepTrace

_MOMENTS = 400


def curve(traced: StepTrace) -> Json:
    """Return {kinds, bytes: [of each moment, by kind], moments: their moves, marks: [[move, what]]}; of each stretch the highest moment."""
    log, kinds, begin = traced.log, kinds_of(traced), start_of(traced.log)
    at = {kind: number for number, kind in enumerate(KINDS)}
    now = [0] * len(KINDS)
    stretch = max(1, (len(log.moves) - begin) // _MOMENTS)
    rows: list[list[int]] = []
    moments: list[int] = []
    best: tuple[int, int, list[int]] | None = None
    for place, number in enumerate(log.moves):
        size = log.sizes[abs(number)]
        now[at[kinds[abs(number)]]] += size if number > 0 else -size
        if place < begin:
            continue
        total = sum(now)
        if best is None or total > best[0]:
            best = (total, place - begin, list(now))
        if (place - begin) % stretch == stretch - 1 or place == len(log.moves) - 1:
            moments.append(best[1])
            rows.append(best[2])
            best = None
    marks = [[max(0, place - begin), what] for place, what in log.marks if what in ("forward", "backward", "gate", "update", "end")]
    return {"kinds": list(KINDS), "bytes": rows, "moments": moments, "marks": marks}
