"""Look at a whole table: every row kept or rejected, what is learned of each, what it is for, what its checks find. Writes no result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, Stop
from holdfast.book import cards_of
from holdfast.book.kinds.table_check import TableFacts
from holdfast.config.config import Config
from holdfast.config.table import columns_of
from holdfast.run.types import Finding
from holdfast.tables.table.intake import Raw
from holdfast.tables.table.repeats import repeats_of
from holdfast.tables.table.schema import Schema
from holdfast.tables.table.split import part_rows
from holdfast.tables.table.statistics import Moments, chunks, facts_of, in_order, moments
from holdfast.tables.table.table_set import TRAINING, UNUSED

Array = npt.NDArray[Any]
LATE = {"no_future": "no row lies so far ahead", "price_not_positive": "a return needs values above 0, now and ahead"}


@dataclass(frozen=True)
class TableSurvey:
    """A table that was looked at. target: what is learned of each kept row, NaN where it is unknown; late: rows without it, by reason;
    part: what each is for; found: moments of the columns of numbers over the training part."""

    target: Array
    late: dict[str, Array]
    part: Array
    parted_by: Literal["row", "group", "time", "file"]
    purged: int
    found: Moments
    findings: list[Finding]


def survey(config: Config, schema: Schema, raw: Raw) -> TableSurvey:
    """Survey a table. Raises Stop(1) where no row is left to train on."""
    arrays, horizon = raw.arrays, columns_of(config).horizon
    target, late, crosses = _targets(schema, raw, horizon)
    usable = ~np.isnan(target)
    if not usable.any():
        reasons = raw.by_reason + Counter({reason: len(rows) for reason, rows in late.items()})
        told = ", ".join(f"{reason} {count:,}" for reason, count in reasons.most_common()) or "the files hold no row"
        raise Stop(BLOCKED, f"no row can be trained on: {told}", f"the first: {raw.first_reject}" if raw.first_reject else "")
    part, how, purged = part_rows(config, usable, arrays["file"], arrays["time"], arrays["group"])
    training = part == TRAINING
    if not training.any():
        raise Stop(BLOCKED, "no rows left to train on: all of them are held out", "hold out fewer (data.held_out)")
    found = moments(arrays["numbers"], training)
    again = repeats_of(raw, part, target)
    facts = facts_of(raw, schema, part, target, found, horizon).model_copy(
        update={
            "held_out_rows": again.held_out,
            "held_out_repeated": len(again.rows),
            "combinations": again.combinations if again.by_chance else None,
            "horizon_crosses": crosses,
            "horizon_parted_by": how if horizon and how in ("row", "group") and again.held_out else None,
            "short_gap": _short_gap(config, how),
        }
    )
    if not again.by_chance:
        part[again.rows] = UNUSED
    return TableSurvey(target, late, part, how, purged, found, judge(facts))


def judge(facts: TableFacts) -> list[Finding]:
    """Return what the checks of tables find."""
    return [
        Finding(card.id, card.severity, text, card.fix, str(card.source[0]))
        for card in cards_of("checks_tables").values()
        for text in card.look(facts)
    ]


def _short_gap(config: Config, parted_by: str) -> tuple[int, int] | None:
    """Return (rows left out before the held-out part, the horizon) where horizons of training rows end behind the gap."""
    table = columns_of(config)
    short = parted_by == "time" and table.horizon and table.purge is not None and table.purge < table.horizon and config.data.held_out
    return (table.purge or 0, table.horizon or 0) if short else None


def _targets(schema: Schema, raw: Raw, horizon: int | None) -> tuple[Array, dict[str, Array], int]:
    """Return (target of each row, NaN where unknown; rows rejected for it, by reason; horizons that end in another group)."""
    values: Array = raw.arrays["target"]
    if not horizon or not len(values):
        return values, {}, 0
    file, time = raw.arrays["file"], raw.arrays["time"]
    order = None if in_order(file, time) else np.lexsort((time, file))  # a file is a series of its own
    target = np.memmap(raw.folder / "learned", np.float64, "w+", shape=values.shape)
    late: dict[str, list[Array]] = {"no_future": [], "price_not_positive": []}
    group, crosses = raw.arrays["group"], 0
    for some in chunks(len(values)):
        then = np.arange(some.start, some.stop) + horizon
        here = np.arange(some.start, some.stop) if order is None else order[some]
        ahead = np.minimum(then, len(values) - 1) if order is None else order[np.minimum(then, len(values) - 1)]
        same = (then < len(values)) & (file[here] == file[ahead])
        positive = (values[here] > 0) & (values[ahead] > 0)
        change = np.full(len(here), np.nan)
        good = same & positive
        crosses += int((group[here] != group[ahead])[good].sum())
        change[good] = np.log(values[ahead[good]] / values[here[good]])
        if schema.kind == "classification":
            change[good] = change[good] > 0
        target[here] = change
        late["no_future"].append(here[~same])
        late["price_not_positive"].append(here[same & ~positive])
    return target, {reason: np.sort(np.concatenate(rows)) for reason, rows in late.items()}, crosses
