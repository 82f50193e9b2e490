"""A daily VIX, merged with bars without look-ahead: a bar of local day D sees rows dated before D alone, once they were published."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import at_place
from holdfast.tables.bars.features.stretch import Vix
from holdfast.tables.bars.features.windows import Column, Whole, shifted

_FORMS = ("%Y-%m-%d", "%m/%d/%Y", "%Y%m%d")
_YEAR = 252  # rows
_STALE = 10  # days after which a close is no longer taken for the newest
_CBOE, _OUT_US = "America/Chicago", 16 * 3_600_000_000  # a day's close is known there from 16:00 on (regular hours end at 15:15)
_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class DailyVix:
    """Rows in the order of days, and what a bar of a later day sees of each."""

    days: Whole
    seen: Vix

    def before(self, day: Whole, time: Whole) -> tuple[Vix, npt.NDArray[np.bool_]]:
        """Return (VIX known at each bar; mask of the bars where none is known or it is over ten days old: NaN there).

        day: local dates, of which none sees a row of its own or later; time: microseconds UTC, before which a row was published. East of
        Chicago a day may begin hours before the close of the day before is known there.
        """
        day = np.minimum(day, _published(time) + 1)
        at = np.searchsorted(self.days, day, side="left") - 1
        unknown = (at < 0) | (day - self.days[np.maximum(at, 0)] > _STALE)
        parts = (np.where(unknown, np.nan, values[np.maximum(at, 0)]) for values in (self.seen.close, self.seen.before))
        more = (np.where(unknown, np.nan, values[np.maximum(at, 0)]) for values in (self.seen.week_before, self.seen.rank))
        return Vix(*parts, *more), unknown


def read_vix(file: Path) -> DailyVix:
    """Read columns date and close (any case; YYYY-MM-DD, MM/DD/YYYY). Raises Stop(1) with the first line that is wrong."""
    try:
        frame = pl.read_csv(file, infer_schema=False, truncate_ragged_lines=True, encoding="utf8-lossy")
    except OSError as error:
        raise at_place(error, file, "cannot be read", "give the file of the daily VIX with --vix") from None
    except pl.exceptions.PolarsError as error:
        raise Stop(BLOCKED, f"{file} is no CSV file: {str(error).splitlines()[0]}", "its columns are DATE and CLOSE") from None
    names = {name.strip().lower(): name for name in frame.columns}
    date, close = names.get("date"), names.get("close") or names.get("vix") or names.get("vix close")
    if date is None or close is None:
        raise Stop(
            BLOCKED, f"{file} has no column date and close; it has {', '.join(frame.columns[:12])}", "Cboe's VIX_History.csv has both"
        )
    days = frame.select(pl.coalesce(pl.col(date).str.strip_chars().str.to_date(form, strict=False) for form in _FORMS)).to_series()
    values = frame[close].str.strip_chars().cast(pl.Float64, strict=False)
    bad = (values.is_null() | ~values.is_finite() | (values <= 0)).fill_null(value=True)  # a holiday, as some write it
    if len(odd := (days.is_null() & ~bad).arg_true()):
        text = f"{file}:{odd[0] + 2}: {frame[date][odd[0]]!r} is no date, as {len(odd):,} of its {len(frame):,} rows have it"
        raise Stop(BLOCKED, text, "dates are written 2025-09-11 or 09/11/2025, the month before the day")
    if bad.all():
        raise Stop(BLOCKED, f"{file}: no row has a date and a close above 0", "dates are written 2025-09-11 or 09/11/2025")
    table = pl.DataFrame({"day": days.to_physical().cast(pl.Int64), "close": values}).filter(~bad)
    if not table["day"].is_sorted():
        table = table.sort("day", maintain_order=True)
    repeated = int(table["day"].is_duplicated().sum())
    if repeated:
        raise Stop(BLOCKED, f"{file}: {repeated:,} rows share their date with another", "keep one row a day")
    return _seen(table["day"].to_numpy(), table["close"].to_numpy())


def _published(time: Whole) -> Whole:
    """Return the newest day, since 1970, whose close is known at these times."""
    there = pl.Series(time, dtype=pl.Int64).cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(_CBOE).dt.replace_time_zone(None)
    days: Whole = (there.to_physical().to_numpy() - _OUT_US) // _DAY_US
    return days


def _seen(days: Whole, close: Column) -> DailyVix:
    rank = np.full(len(close), np.nan)
    if len(close) >= _YEAR:
        years = np.lib.stride_tricks.sliding_window_view(close, _YEAR)
        rank[_YEAR - 1 :] = (years <= close[_YEAR - 1 :, None]).mean(axis=1)
    return DailyVix(days, Vix(close, shifted(close, 1), shifted(close, 5), rank))
