"""Times of a column as microseconds since 1970, UTC, vectorised. A text without an offset is local time of a zone that is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.base.errors import BLOCKED, USAGE, Stop

NONE = np.iinfo(np.int64).min  # what stands for a text that is no time
_ZONED = "%+"
_PLAIN = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%m/%d/%YT%H:%M:%S", "%m/%d/%YT%H:%M", "%Y%m%dT%H%M%S")  # without an offset
_DAYS = ("%Y-%m-%d", "%m/%d/%Y", "%Y%m%d")
_DAY_FIRST = r"^(1[3-9]|2\d|3[01])/(0?[1-9]|1[0-2])/\d{4}\b"  # is no month/day/year, and shows that the others may be none
_WITH_HOUR = r"^(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])([01]\d|2[0-3])$"  # year to hour, or a Unix time from 2030 on
_US = {10: 1_000_000, 13: 1_000, 16: 1}  # digits of a Unix time in seconds, milliseconds, microseconds; 19: nanoseconds


class Times(NamedTuple):
    """at: microseconds, NONE where there is no time; zoned: texts with an offset; plain: without, taken as local time."""

    at: npt.NDArray[np.int64]
    zoned: int
    plain: int


def times_of(values: pl.Series, zone: str) -> Times:
    """Return the times of a column. Raises Stop(2) where the zone is unknown, Stop(1) where a day stands before the month."""
    if isinstance(values.dtype, pl.Datetime):
        aware = values.dtype.time_zone is not None
        moments = values if aware else values.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        count = len(values) - values.null_count()
        return Times(_filled(moments.dt.epoch("us")), count if aware else 0, 0 if aware else count)
    text = pl.col("t")
    plain = [text.str.replace(" ", "T", literal=True).str.to_datetime(form, time_unit="us", strict=False) for form in _PLAIN]
    plain += [text.str.to_date(form, strict=False).cast(pl.Datetime("us")) for form in _DAYS]
    texts = values.cast(pl.String).str.strip_chars()
    if len(day_first := texts.filter(texts.str.contains(_DAY_FIRST).fill_null(value=False))):
        told = f"the column {values.name} has times such as {day_first[0]}: read as month/day/year, 05/09 of such a column would be May 9"
        raise Stop(BLOCKED, told, "write times as 2025-09-05T09:30:00, with an offset where there is one")
    seconds = texts.filter(texts.str.contains(r"^\d{10}$").fill_null(value=False))
    if len(seconds) and seconds.str.contains(_WITH_HOUR).all():
        told = f"the column {values.name} has times such as {seconds[0]}: read as Unix times, they are of 2030 or later"
        raise Stop(BLOCKED, told, "write them as 2025-09-05T09:00:00")
    try:
        frame = pl.DataFrame({"t": texts}).select(
            text.str.to_datetime(_ZONED, time_unit="us", time_zone="UTC", strict=False).dt.epoch("us").alias("zoned"),
            pl.coalesce(plain).dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.epoch("us").alias("plain"),
            pl.when(text.str.contains(r"^(\d{10}|\d{13}|\d{16}|\d{19})$")).then(_unix(text)).alias("unix"),
        )
    except pl.exceptions.ComputeError:
        raise Stop(USAGE, f"{zone}: no such time zone", "write for example America/Chicago, Europe/Berlin or UTC") from None
    at = frame.select(pl.coalesce("zoned", "unix", "plain"))["zoned"]
    zoned = len(values) - frame["zoned"].null_count()
    local = int((frame["zoned"].is_null() & frame["unix"].is_null() & frame["plain"].is_not_null()).sum())
    return Times(_filled(at), zoned, local)


def _filled(values: pl.Series) -> npt.NDArray[np.int64]:
    return values.fill_null(NONE).to_numpy()


def _unix(text: pl.Expr) -> pl.Expr:
    """Convert a Unix time in seconds, milli-, micro- or nanoseconds, told by its digits, to microseconds."""
    value, digits = text.cast(pl.Int64, strict=False), text.str.len_chars()
    nanoseconds = pl.when(digits == 19).then(value // 1000)
    return pl.coalesce(nanoseconds, *(pl.when(digits == count).then(value * factor) for count, factor in _US.items()))
