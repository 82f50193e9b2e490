"""From a file of bars to a file of features, a chunk at a time: memory does not grow with the bars. Prints nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, append_line
from holdfast.tables.bars.features import ALL, LOOKBACK
from holdfast.tables.bars.features.feature import Feature
from holdfast.tables.bars.features.stretch import Stretch
from holdfast.tables.bars.features.volume_profile import outside
from holdfast.tables.bars.features.windows import Column, Whole
from holdfast.tables.bars.judge import Judge, KeptBars, refuse_backward, refuse_several
from holdfast.tables.bars.read import JOINED, Layout, read_chunks
from holdfast.tables.bars.vix import DailyVix
from holdfast.tables.table.write import table_writer

_Write = Callable[[KeptBars, dict[str, Column], dict[str, Column]], None]
CHUNK = 100_000  # bars
_MINUTE_US = 60_000_000
_ONE_BP = 1e-4


@dataclass(frozen=True)
class Wish:
    """What to make. keep: columns of the bars, or joined prices, that stand behind the features.

    bin: None to follow from the first bar's price.
    """

    file: Path
    out: Path
    vix: DailyVix | None
    rejects: Path
    keep: tuple[str, ...] = ()
    zone: str = "America/Chicago"
    begin: int = 17 * 60
    bin: float | None = None
    chunk: int = CHUNK


@dataclass
class _Count:
    """What is told of the bars. gaps: places inside a session where minutes are missing; outside: bars off the grid of the profile;
    other_steps: bars that stand another time than a minute after the one before in their session."""

    sessions: int = 0
    gaps: int = 0
    missing_minutes: int = 0
    without_vix: int = 0
    outside: int = 0
    other_steps: int = 0
    first: int | None = None
    last: tuple[int, int] | None = None  # time and session of the newest bar
    bin: float = 0.0
    empty: dict[str, int] = field(default_factory=dict)

    def add(self, time: Whole, session: Whole) -> None:
        """Count what lies between these bars, and between the first of them and the last one before."""
        before, of = self.last or (int(time[0]), int(session[0]))
        apart = np.diff(time, prepend=before)
        inside = np.diff(session, prepend=of) == 0
        jumps = inside & (apart > _MINUTE_US)
        self.other_steps += int((inside & (apart != _MINUTE_US) & (apart > 0)).sum())
        self.gaps += int(jumps.sum())
        self.missing_minutes += int((apart[jumps] // _MINUTE_US - 1).sum())
        self.sessions += int((~inside).sum()) + (self.last is None)
        self.first = int(time[0]) if self.first is None else self.first
        self.last = int(time[-1]), int(session[-1])


def build_features(wish: Wish, done: Callable[[int], None]) -> Json:
    """Write wish.out, whole or not at all, and the bars that are no bars into wish.rejects; return the facts. `done` is told bars so far.

    Raises Stop where nothing can be made of the file, and OSError.
    """
    chosen = [feature for feature in ALL if wish.vix or not feature.needs_vix]
    wish.rejects.unlink(missing_ok=True)
    layout, chunks = read_chunks(wish.file, list(wish.keep), wish.chunk)
    judge, count = Judge(layout, wish.zone, wish.begin), _Count()
    if taken := sorted({*wish.keep} & {feature.name for feature in chosen}):
        raise Stop(USAGE, f"--keep {', '.join(taken)}: a feature has that name", "rename the column")
    with _writer(wish.out, layout, wish.keep) as write:
        carried: Stretch | None = None
        scale = 1.0
        for frame in chunks:
            kept, rejects = judge.take(frame)
            for reject in rejects:
                append_line(wish.rejects, {"file": str(wish.file), **reject})
            if not len(kept.time):
                continue
            stretch, scale = _joined(carried, kept, scale, wish, count)
            new = len(stretch) - len(kept.time)
            count.add(kept.time, kept.session)
            joined = {name: getattr(stretch, JOINED[name])[new:] for name in wish.keep if name not in layout.keep}
            columns = {feature.name: feature.of(stretch)[new:] for feature in chosen}
            count.outside += int(outside(stretch.typical, stretch.starts, stretch.bin)[new:].sum())
            for name, values in columns.items():
                count.empty[name] = count.empty.get(name, 0) + int(np.isnan(values).sum())
            write(kept, columns, joined)
            carried = stretch.from_bar(_needed_from(stretch))
            done(judge.kept)
        refuse_backward(judge.kept, judge.by_reason, str(wish.file))
        refuse_several(judge.contracts, count.sessions, str(wish.file))
        if not judge.kept:
            told = ", ".join(f"{reason} {number:,}" for reason, number in judge.by_reason.most_common()) or "it holds no row"
            raise Stop(
                BLOCKED, f"{wish.file}: no bar can be used: {told}", f"each row and its reason: {wish.rejects}" if judge.by_reason else ""
            )
    return _facts(wish, judge, count, chosen)


def _joined(carried: Stretch | None, kept: KeptBars, scale: float, wish: Wish, count: _Count) -> tuple[Stretch, float]:
    """Return (bars behind those carried over, newest scale of prices): from a change of contract on, prices are scaled to join the old."""
    prices = {name: values.copy() for name, values in kept.prices.items()}
    last = carried.close[-1] if carried else None
    first = np.flatnonzero(kept.first_of_contract)
    if scale != 1.0:
        for values in prices.values():
            values *= scale
    for at in first:  # a few a year
        before = prices["close"][at - 1] if at else last
        factor = 1.0 if before is None else before / prices["open"][at]
        scale *= factor
        for values in prices.values():
            values[at:] *= factor
    if not count.bin:
        count.bin = wish.bin or _round_bin(prices["close"][0])
    vix = None
    if wish.vix:
        vix, unknown = wish.vix.before(kept.day, kept.time)
        count.without_vix += int(unknown.sum())
    new = Stretch(kept.time, **prices, volume=kept.volume, day=kept.day, minute=kept.minute, session=kept.session, vix=vix, bin=count.bin)
    return (_appended(carried, new) if carried else new), scale


def _appended(old: Stretch, new: Stretch) -> Stretch:
    names = [one.name for one in fields(Stretch) if one.name not in ("vix", "bin")]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(old, name), getattr(new, name)]) for name in names}
    vix = None
    if old.vix and new.vix:
        vix = type(new.vix)(*(np.concatenate([getattr(old.vix, part.name), getattr(new.vix, part.name)]) for part in fields(new.vix)))
    return replace(new, vix=vix, **arrays)


def _needed_from(bars: Stretch) -> int:
    """Return the first bar that later bars need: the begin of the session before the newest, or LOOKBACK bars before the end."""
    of_session = int(bars.starts[-2]) if len(bars.starts) > 1 else 0
    return max(0, min(of_session, len(bars) - LOOKBACK))


def _round_bin(price: float) -> float:
    """Round a ten-thousandth of the price to the nearest number of the form 1, 2 or 5 times a power of ten."""
    wanted = price * _ONE_BP
    power = 10.0 ** np.floor(np.log10(wanted))
    return float(min((power * step for step in (1.0, 2.0, 5.0, 10.0)), key=lambda width: abs(np.log(width / wanted))))


@contextlib.contextmanager
def _writer(out: Path, layout: Layout, keep: tuple[str, ...]) -> Iterator[_Write]:
    """Write timestamps, features and kept columns, chunk by chunk; times as they stand in a CSV, as times in Parquet."""
    stamp, as_text, of_numbers = layout.columns["timestamp"], out.suffix.lower() == ".csv", dict[str, bool]()
    with table_writer(out) as write_table:

        def kept_column(texts: pl.Series) -> pl.Series:
            """Return a column as it stands; for Parquet as numbers, where its first bars have them."""
            numbers = texts.cast(pl.Float64, strict=False)
            known = numbers.null_count() == texts.null_count()
            if as_text or not of_numbers.setdefault(texts.name, known):
                return texts
            if not known:
                odd = texts.filter(numbers.is_null() & texts.is_not_null())[0]
                raise Stop(BLOCKED, f"--keep {texts.name}: numbers at first, later {odd!r}", "write a .csv, which keeps it as it stands")
            return numbers

        def write(kept: KeptBars, columns: dict[str, Column], joined: dict[str, Column]) -> None:
            time = kept.frame[stamp] if as_text else pl.Series(kept.time).cast(pl.Datetime("us", "UTC"))
            numbers = [pl.Series(name, values).fill_nan(None) for name, values in columns.items()]
            beside = [pl.Series(name, joined[name]) if name in joined else kept_column(kept.frame[name]) for name in keep]
            write_table(pl.DataFrame([time.alias("timestamp"), *numbers, *beside]))

        yield write


def _facts(wish: Wish, judge: Judge, count: _Count, chosen: list[Feature]) -> Json:
    rejected = judge.by_reason.total()
    first, last = (_iso(stamp, wish.zone) for stamp in (count.first, count.last[0] if count.last else None))
    return {
        "rows": judge.kept,
        "features": [feature.name for feature in chosen],
        "sessions": count.sessions,
        "gaps": count.gaps,
        "minute_bars": 2 * count.other_steps < judge.kept,
        "missing_minutes": count.missing_minutes,
        "contracts": judge.contracts,
        "read": judge.kept + rejected,
        "rejected": rejected,
        "by_reason": dict(judge.by_reason.most_common()),
        "rejects": str(wish.rejects) if rejected else None,
        "first": first,
        "last": last,
        "zone": wish.zone,
        "without_offset": judge.without_offset,
        "without_vix": count.without_vix if wish.vix else None,
        "bin": count.bin,
        "outside_profile": count.outside,
        "empty": {name: number for name, number in count.empty.items() if number},
        "out": str(wish.out),
    }


def _iso(stamp: int | None, zone: str) -> str | None:
    if stamp is None:
        return None
    time = pl.Series([stamp]).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone)
    return str(time.dt.to_string("iso:strict")[0])
