"""Times of a column as microseconds since 1970, UTC, vectorised. A text without an offset is local time of a zone that is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.base.errors import USAGE, Stop

NONE = np.iinfo(np.int64).min  # what stands for a text that is no time
_ZONED = "%+"
_PLAIN = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M", "%m/%d/%YT%H:%M:%S", "%m/%d/%YT%H:%M", "%Y%m%dT%H%M%S")  # without an offset
_DAYS = ("%Y-%m-%d", "%m/%d/%Y", "%Y%m%d")
_US = {10: 1_000_000, 13: 1_000, 16: 1}  # digits of a Unix time in seconds, milliseconds, microseconds


class Times(NamedTuple):
    """at: microseconds, NONE where there is no time; zoned: texts with an offset; plain: without, taken as local time."""

    at: npt.NDArray[np.int64]
    zoned: int
    plain: int


def times_of(values: pl.Series, zone: str) -> Times:
    """Return the times of a column. Raises Stop(2) where the zone is unknown."""
    if isinstance(values.dtype, pl.Datetime):
        aware = values.dtype.time_zone is not None
        moments = values if aware else values.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        count = len(values) - values.null_count()
        return Times(_filled(moments.dt.epoch("us")), count if aware else 0, 0 if aware else count)
    text = pl.col("t")
    plain = [text.str.replace(" ", "T", literal=True).str.to_datetime(form, time_unit="us", strict=False) for form in _PLAIN]
    plain += [text.str.to_date(form, strict=False).cast(pl.Datetime("us")) for form in _DAYS]
    try:
        frame = pl.DataFrame({"t": values.cast(pl.String).str.strip_chars()}).select(
            text.str.to_datetime(_ZONED, time_unit="us", time_zone="UTC", strict=False).dt.epoch("us").alias("zoned"),
            pl.coalesce(plain).dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null").dt.epoch("us").alias("plain"),
            pl.when(text.str.contains(r"^(\d{10}|\d{13}|\d{16})$")).then(_unix(text)).alias("unix"),
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
    """Convert a Unix time in seconds, milliseconds or microseconds, told by its digits, to microseconds."""
    value, digits = text.cast(pl.Int64, strict=False), text.str.len_chars()
    return pl.coalesce(pl.when(digits == count).then(value * factor) for count, factor in _US.items())
