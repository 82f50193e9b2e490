"""`data bars`: features equal a plain version, none sees a later bar, chunks change no bit, and every row is kept or rejected."""

from __future__ import annotations

import json
import math
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import ROOT, SHARED, needs_shared
from holdfast.base.errors import Stop
from holdfast.base.files import Json
from holdfast.cli.main import main
from holdfast.tables.bars.build import Wish, build_features
from holdfast.tables.bars.features import ALL
from holdfast.tables.bars.features.volume_profile import profile_of
from holdfast.tables.bars.made import made_bars, made_vix
from holdfast.tables.bars.vix import _seen, read_vix
from holdfast.tables.table.times import times_of

Call = Callable[..., Json]
BARS, BIN = 3400, 0.1
REAL = SHARED / "data" / "bars"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bars")
    # one change of contract in the middle: prices jump by 2 %
    frame = pl.concat(made_bars(BARS, seed=3)).drop("contract")
    second = pl.Series(range(BARS)) >= 2000
    scaled = [
        pl.when(second).then(pl.col(name) * 1.02).otherwise(pl.col(name)).round(2).alias(name) for name in ("open", "high", "low", "close")
    ]
    frame.with_columns(*scaled, pl.when(second).then(pl.lit("B")).otherwise(pl.lit("A")).alias("contract")).write_csv(folder / "bars.csv")
    made_vix(BARS, seed=3).write_csv(folder / "vix.csv")
    return folder


def features(call: Call, folder: Path, out: Path, bars: Path | None = None, vix: Path | None = None, **options: Any) -> pl.DataFrame:
    extra = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    call("bars", bars or folder / "bars.csv", "--vix", vix or folder / "vix.csv", "--out", out, "--bin", BIN, *extra)
    return pl.read_csv(out, infer_schema_length=None) if out.suffix == ".csv" else pl.read_parquet(out)


def plain(folder: Path, sample: list[int]) -> dict[str, list[float]]:
    """Every feature at the bars of `sample`, by loops over lists: as its formula reads."""
    rows = pl.read_csv(folder / "bars.csv").to_dicts()
    scale, prices = 1.0, []
    for at, row in enumerate(rows):
        if at and row["contract"] != rows[at - 1]["contract"]:
            scale *= prices[-1]["close"] / (row["open"] * scale)
        prices.append({name: row[name] * scale for name in ("open", "high", "low", "close")})
    o, h, low, c = ([price[name] for price in prices] for name in ("open", "high", "low", "close"))
    v = [float(row["volume"]) for row in rows]
    time = [datetime.fromisoformat(row["timestamp"]) for row in rows]
    session = [(moment + timedelta(hours=7)).date() for moment in time]
    vix = [(row["DATE"], row["CLOSE"]) for row in pl.read_csv(folder / "vix.csv").iter_rows(named=True)]
    typical = [(h[i] + low[i] + c[i]) / 3 for i in range(len(rows))]
    found: dict[str, list[float]] = defaultdict(list)
    for t in sample:
        first = session.index(session[t])
        before = session.index(session[first - 1]) if first else None
        for name, value in _at(t, first, before, o, h, low, c, v, typical, time, session, vix).items():
            found[name].append(value)
    return found


def _at(t: int, first: int, before: int | None, o, h, low, c, v, typical, time, session, vix) -> dict[str, float]:  # type: ignore[no-untyped-def]
    def last(values: list[float], width: int) -> list[float] | None:
        return values[t - width + 1 : t + 1] if t - width + 1 >= 0 else None

    def mean(values: list[float] | None) -> float:
        return math.nan if values is None else math.fsum(values) / len(values)

    def z(values: list[float] | None) -> float:
        if values is None:
            return math.nan
        middle = mean(values)
        spread = math.sqrt(mean([(value - middle) ** 2 for value in values]))
        return (values[-1] - middle) / spread if spread else math.nan

    def over(ends: list[int], value: Callable[[int], float]) -> list[float] | None:
        return None if ends[0] < 0 else [value(i) for i in ends]

    def move(i: int) -> float:
        return math.log(c[i] / c[i - 1])

    def newest(width: int, value: Callable[[int], float], back: int = 0) -> list[float] | None:
        return None if t - width + 1 - back < 0 else [value(i) for i in range(t - width + 1, t + 1)]

    def volatility(width: int) -> float:
        return math.sqrt(mean(newest(width, lambda i: move(i) ** 2, 1)))

    out: dict[str, float] = {f"return_{k}": math.log(c[t] / c[t - k]) if t >= k else math.nan for k in (1, 5, 15, 30, 60, 240)}
    so_far = range(first, t + 1)
    out["return_session"] = math.log(c[t] / o[first])
    out["gap_open"] = math.log(o[first] / c[first - 1]) if first else math.nan
    out["zscore_60"] = z(last(c, 60))
    moves = newest(60, lambda i: abs(c[i] - c[i - 1]), 1)
    out["efficiency_60"] = abs(c[t] - c[t - 60]) / sum(moves) if moves and sum(moves) else math.nan
    up, down = newest(14, lambda i: max(c[i] - c[i - 1], 0), 1), newest(14, lambda i: max(c[i - 1] - c[i], 0), 1)
    out["rsi_14"] = 100 * sum(up) / (sum(up) + sum(down)) if up and down and sum(up) + sum(down) else math.nan
    out["range_1"], out["body"] = math.log(h[t] / low[t]), math.log(c[t] / o[t])
    out["upper_wick"], out["lower_wick"] = math.log(h[t] / max(o[t], c[t])), math.log(min(o[t], c[t]) / low[t])
    out["true_range"] = (max(h[t], c[t - 1]) - min(low[t], c[t - 1])) / c[t - 1] if t else math.nan
    highs, lows = last(h, 60), last(low, 60)
    out["close_in_range_60"] = (c[t] - min(lows)) / (max(highs) - min(lows)) if highs and lows else math.nan
    top, bottom = max(h[i] for i in so_far), min(low[i] for i in so_far)
    out["close_in_session"] = (c[t] - bottom) / (top - bottom) if top > bottom else math.nan
    out["range_session"] = math.log(top / bottom)
    out["volume_log"], out["volume_session"] = math.log1p(v[t]), math.log1p(sum(v[i] for i in so_far))
    out["volume_relative_60"], out["volume_z_240"] = v[t] / mean(last(v, 60)), z(last(v, 240))
    signed = newest(60, lambda i: ((c[i] > o[i]) - (c[i] < o[i])) * v[i])
    out["signed_volume_60"] = sum(signed) / sum(v[t - 59 : t + 1]) if signed else math.nan
    traded = sum(v[i] for i in so_far)
    out["vwap_distance"] = math.log(c[t] / (math.fsum(typical[i] * v[i] for i in so_far) / traded)) if traded else math.nan
    out["illiquidity_60"] = 1e6 * mean(newest(60, lambda i: abs(move(i)) / (v[i] * c[i]), 1))
    for width in (15, 60, 240, 1380):
        out[f"volatility_{width}"] = volatility(width)
    out["volatility_ratio"] = volatility(15) / volatility(240)
    out["parkinson_60"] = math.sqrt(mean(newest(60, lambda i: math.log(h[i] / low[i]) ** 2)) / (4 * math.log(2)))
    klass = newest(60, lambda i: math.log(h[i] / low[i]) ** 2 / 2 - (2 * math.log(2) - 1) * math.log(c[i] / o[i]) ** 2)
    out["garman_klass_60"] = math.sqrt(max(mean(klass), 0)) if klass else math.nan
    known = [close for day, close in vix if day < time[t].date().isoformat()]
    out["vix_close"], out["vix_change_1"] = known[-1], math.log(known[-1] / known[-2])
    out["vix_change_5"] = math.log(known[-1] / known[-6])
    out["vix_rank_252"] = sum(close <= known[-1] for close in known[-252:]) / 252
    out["vix_premium"] = math.log(known[-1] / 100 / (volatility(1380) * math.sqrt(252 * 1380)))
    minute = time[t].hour * 60 + time[t].minute
    out["minute_sin"], out["minute_cos"] = math.sin(2 * math.pi * minute / 1440), math.cos(2 * math.pi * minute / 1440)
    out["weekday"], out["regular_hours"] = session[t].weekday(), float(510 <= minute < 900)
    out["session_minutes"] = (time[t] - time[first]).total_seconds() / 60
    out["minutes_since_bar"] = (time[t] - time[t - 1]).total_seconds() / 60 if t else math.nan

    def volumes(bars: range) -> dict[int, float]:
        at: dict[int, float] = defaultdict(float)
        for i in bars:
            at[math.floor(typical[i] / BIN)] += v[i]
        return at

    def levels(at: dict[int, float]) -> tuple[float, float, float]:
        poc = min(at, key=lambda number: (-at[number], number))
        lowest = highest = poc
        inside, wanted = at[poc], 0.7 * sum(at.values())
        while inside < wanted:
            above, below = any(number > highest for number in at), any(number < lowest for number in at)
            if above and (at.get(highest + 1, 0) >= at.get(lowest - 1, 0) or not below):
                highest += 1
                inside += at.get(highest, 0)
            else:
                lowest -= 1
                inside += at.get(lowest, 0)
        return (poc + 0.5) * BIN, (highest + 1) * BIN, lowest * BIN

    here = dict(volumes(range(first, t + 1)))
    poc, vah, val = levels(here)
    out["vpoc_distance"], out["vah_distance"], out["val_distance"] = (math.log(c[t] / price) for price in (poc, vah, val))
    out["value_area_width"] = math.log(vah / val)
    earlier = max(first, t - 60) if t - 60 >= first else first
    out["vpoc_migration"] = math.log(poc / levels(dict(volumes(range(first, earlier + 1))))[0])
    out["node_volume"] = here.get(math.floor(c[t] / BIN), 0) / (sum(here.values()) / len(here))
    most = max(here.values())
    out["node_count"] = sum(x > here.get(n - 1, 0) and x >= here.get(n + 1, 0) and x >= most / 2 for n, x in here.items())
    out["vpoc_before_distance"] = math.log(c[t] / levels(dict(volumes(range(before, first))))[0]) if before is not None else math.nan
    day = levels(dict(volumes(range(t - 1379, t + 1)))) if t >= 1379 else None
    out["rolling_vpoc_distance"] = math.log(c[t] / day[0]) if day else math.nan
    out["rolling_value_position"] = (c[t] - day[2]) / (day[1] - day[2]) if day else math.nan
    return out


def test_every_feature_equals_a_plain_version(made: Path, call: Call, tmp_path: Path) -> None:
    sample = sorted({0, 1, 59, 60, 239, 240, 1379, 1380, 1999, 2000, 2001, 2059, BARS - 1} | set(range(7, BARS, 61)))
    found = features(call, made, tmp_path / "out.csv")
    wanted = plain(made, sample)
    assert len(ALL) == 54 and found.columns == ["timestamp", *wanted.keys()][:1] + [feature.name for feature in ALL]
    assert {feature.name for feature in ALL} == set(wanted)
    for name, values in wanted.items():
        for at, value in zip(sample, values, strict=True):
            got = found[name][at]
            assert (got is None) == math.isnan(value), f"{name} at bar {at}: {got}, plainly {value}"
            assert got is None or abs(got - value) <= 1e-9 * max(1, abs(value)), f"{name} at bar {at}: {got}, plainly {value}"


def test_each_feature_has_a_formula_a_unit_and_a_source() -> None:
    assert all(feature.formula and feature.unit and feature.source for feature in ALL)
    page = (ROOT / "docs" / "reference" / "features.md").read_text()
    for feature in ALL:
        assert f"| `{feature.name}` | {feature.formula.replace('|', chr(92) + '|')} | {feature.unit} | {feature.source} |" in page, (
            feature.name
        )


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, BARS - 2), seed=st.integers(0, 2**16), chunk=st.sampled_from([700, 1999, 100_000]))
def test_altering_everything_after_a_bar_changes_nothing_up_to_it(
    made: Path, call: Call, tmp_path: Path, cut: int, seed: int, chunk: int
) -> None:
    lines = (made / "bars.csv").read_text().splitlines()
    draw = random.Random(seed)
    for at in range(cut + 1, len(lines)):
        time, *_ = lines[at].split(",")
        price = 1000 + 90 * draw.random()
        lines[at] = f"{time},{price},{price + 30},{price - 30},{price + 10},{draw.randrange(9000)},{'AB'[at // 900 % 2]}"
    (tmp_path / "altered.csv").write_text("\n".join(lines) + "\n")
    day = lines[cut].split("T")[0]
    vix = [
        line if line.split(",")[0] < day or line[0] == "D" else f"{line.split(',')[0]},77.7"
        for line in (made / "vix.csv").read_text().splitlines()
    ]
    (tmp_path / "vix.csv").write_text("\n".join(vix) + "\n")
    before = features(call, made, tmp_path / "before.csv", chunk=chunk)
    after = features(call, made, tmp_path / "after.csv", tmp_path / "altered.csv", tmp_path / "vix.csv", chunk=chunk)
    assert before.head(cut).equals(after.head(cut))
    assert not before.tail(BARS - cut).equals(after.tail(BARS - cut))


def test_the_size_of_a_chunk_changes_no_bit(made: Path, call: Call, tmp_path: Path) -> None:
    whole = features(call, made, tmp_path / "whole.parquet", keep="close,contract")
    small = features(call, made, tmp_path / "small.parquet", keep="close,contract", chunk=311)
    assert whole.equals(small) and whole.columns[-2:] == ["close", "contract"]


@pytest.mark.parametrize("whole", [True, False])
def test_a_profile_of_fractions_of_a_contract_sees_no_later_bar(whole: bool) -> None:
    """Coins are traded in fractions, whose sums round. Prices leave gaps between their bins, so that a side is empty for some of them."""
    draw = np.random.default_rng(1)
    price = 100 + np.cumsum(draw.normal(0, 0.05, 1500))
    volume = draw.integers(1, 60, 1500).astype(float) if whole else draw.exponential(1.0, 1500)
    starts, cut = np.array([0, 700]), 1440
    every, early = (profile_of(price[:end], price[:end], volume[:end], starts, 0.01) for end in (1500, cut))
    for name in ("session", "rolling"):
        for level in ("vpoc", "high", "low"):
            found, later = getattr(getattr(early, name), level), getattr(getattr(every, name), level)
            assert np.array_equal(found, later[:cut], equal_nan=True), (name, level)
    assert np.array_equal(early.here, every.here[:cut]) and np.array_equal(early.nodes, every.nodes[:cut])
    bins = np.floor(price / 0.01).astype(int).tolist()
    places = [(every.session, 0, at) for at in range(0, 400, 5)] + [(every.rolling, at - 1379, at) for at in range(1379, 1500, 60)]
    for levels, first, at in places:
        traded: dict[int, Fraction] = defaultdict(Fraction)
        for place, some in zip(bins[first : at + 1], volume[first : at + 1].tolist(), strict=True):
            traded[place] += Fraction(some)
        assert (levels.low[at], levels.high[at]) == pytest.approx(_value_area(traded, 0.01), abs=1e-6), (first, at)


def _value_area(traded: dict[int, Fraction], width: float) -> tuple[float, float]:
    """Widen from the bin of most volume, without rounding: (lower, upper edge)."""
    lowest = highest = min(traded, key=lambda number: (-traded[number], number))
    inside, wanted, bottom, top = traded[lowest], Fraction(0.7) * sum(traded.values()), min(traded), max(traded)
    while inside < wanted:
        if highest < top and (traded.get(highest + 1, 0) >= traded.get(lowest - 1, 0) or lowest == bottom):
            highest += 1
            inside += traded.get(highest, 0)
        else:
            lowest -= 1
            inside += traded.get(lowest, 0)
    return lowest * width, (highest + 1) * width


def test_every_row_is_kept_or_rejected_with_its_reason(made: Path, call: Call, tmp_path: Path) -> None:
    lines = (made / "bars.csv").read_text().splitlines()[:60]
    time, *numbers = lines[20].split(",")
    wrong = {
        "too_many_fields": f"{lines[20]},7",
        "timestamp_unreadable": ",".join(["yesterday", *numbers]),
        "timestamp_repeated": lines[20],
        "timestamp_unordered": lines[5],
        "not_a_number": f"{time[:-9]}:30{time[-6:]},1,1,n/a,1,5,A",
        "price_not_positive": f"{time[:-9]}:31{time[-6:]},0,1,0,1,5,A",
        "volume_negative": f"{time[:-9]}:32{time[-6:]},1,1,1,1,-5,A",
        "high_below_low": f"{time[:-9]}:33{time[-6:]},1,1,2,1,5,A",
    }
    (tmp_path / "bars.csv").write_text("\n".join([*lines[:21], *wrong.values(), "", *lines[21:]]) + "\n")
    facts = call("bars", tmp_path / "bars.csv", "--vix", made / "vix.csv", "--out", tmp_path / "out.csv")
    rejects = [json.loads(line) for line in (tmp_path / "out.csv.rejects.jsonl").read_text().splitlines()]
    assert facts["rows"] == len(pl.read_csv(tmp_path / "out.csv")) == len(lines) - 1
    assert facts["read"] == facts["rows"] + facts["rejected"] and facts["by_reason"] == dict.fromkeys(wrong, 1)
    assert [(row["line"], row["reason"]) for row in rejects] == [(22 + at, reason) for at, reason in enumerate(wrong)]
    assert rejects[0]["raw"] == wrong["too_many_fields"] and rejects[1]["raw"]["timestamp"] == "yesterday"


def test_a_change_of_contract_is_no_return_of_a_joined_price(made: Path, call: Call, tmp_path: Path) -> None:
    """The second contract is 2 % dearer from bar 2000 on: so is the kept price, and the joined one goes on with its bars' returns."""
    kept = features(call, made, tmp_path / "kept.parquet", keep="close,close_joined", chunk=700)
    raw, joined = kept["close"].to_list(), kept["close_joined"].to_list()
    assert math.log(raw[2000] / raw[1999]) > 0.015 and abs(math.log(joined[2000] / joined[1999])) < 0.005
    assert joined[:2000] == raw[:2000]
    for at in (2001, 2500, BARS - 1):
        assert math.log(joined[at] / joined[at - 1]) == pytest.approx(math.log(raw[at] / raw[at - 1]), abs=1e-12)


BAD = {
    "no close": ("timestamp,open,high,low,volume\n", "has no column close"),
    "empty": ("", "is empty"),
    "header alone": ("timestamp,open,high,low,close,volume\n", "it holds no row"),
    "a million columns": ("c" + ",c" * 999_999 + "\n1,2\n", "1,000,000 columns, 1,000 at most"),
    "newest first": (
        "timestamp,open,high,low,close,volume\n" + "".join(f"2025-01-{day:02}T10:00:00Z,1,1,1,1,1\n" for day in range(20, 9, -1)),
        "sort the file by time",
    ),
    "twice": ("timestamp,open,high,low,close,close,volume\n1,1,1,1,1,1,1\n", "names close more than once"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_holds_no_bars_is_refused_in_one_sentence(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, told = BAD[name]
    (tmp_path / "bars.csv").write_text(text)
    assert main(["data", "bars", str(tmp_path / "bars.csv"), "--out", str(tmp_path / "out.csv")]) == 1
    said = capfd.readouterr().err
    assert told in said and len(said) < 500 and "Traceback" not in said
    assert not (tmp_path / "out.csv").exists()


def bars_of(*rows: tuple[str, str], price: float = 100.0) -> str:
    """Return a file of bars with a time and a contract each."""
    texts = [f"{time},{price},{price},{price},{price},1,{contract}" for time, contract in rows]
    return "\n".join(["timestamp,open,high,low,close,volume,contract", *texts]) + "\n"


@pytest.mark.parametrize(("session", "days"), [("17:00", [0, 1]), ("09:30", [6, 0]), ("00:00", [0, 0])])
def test_a_session_that_begins_in_the_morning_has_the_date_of_its_begin(session: str, days: list[int], tmp_path: Path, call: Call) -> None:
    """A Monday's bars at 08:00 and at 18:00: of New York's shares at 09:30, the first belongs to the day before."""
    (tmp_path / "bars.csv").write_text(bars_of(("2025-09-08T08:00:00", "A"), ("2025-09-08T18:00:00", "A")))
    call("bars", tmp_path / "bars.csv", "--session", session, "--zone", "America/New_York", "--out", tmp_path / "out.csv")
    assert pl.read_csv(tmp_path / "out.csv")["weekday"].to_list() == days


def test_several_contracts_side_by_side_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A vendor's file of all months of a future: each minute has a bar of some of them."""
    (tmp_path / "bars.csv").write_text(bars_of(*((f"2025-09-08T08:{n:02}:00", "AB"[n % 2]) for n in range(10))))
    assert main(["data", "bars", str(tmp_path / "bars.csv"), "--out", str(tmp_path / "out.csv")]) == 1
    assert "the contract changes 9 times in 1 session" in capfd.readouterr().err and not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(("late", "told"), [("13/09/2025,15.5", "13/09/2025"), ("Sept 12,15.5", "Sept 12"), ("2025-09-12,.", "")])
def test_a_daily_vix_with_a_date_that_is_none_is_refused(late: str, told: str, tmp_path: Path) -> None:
    """Day before month, the first twelve days of a month would be read as others; a holiday without a close is no error."""
    (tmp_path / "vix.csv").write_text(f"DATE,CLOSE\n05/09/2025,15.0\n{late}\n")
    if told:
        with pytest.raises(Stop, match=f"vix.csv:3: '{told}' is no date"):
            read_vix(tmp_path / "vix.csv")
    else:
        assert read_vix(tmp_path / "vix.csv").seen.close.tolist() == [15.0]


def test_a_kept_column_stays_of_one_kind(tmp_path: Path, call: Call) -> None:
    """Codes that look like numbers until one has a letter: a chunk at a time they would be of two kinds."""
    text = bars_of(*((f"2025-09-08T08:0{n}:00", code) for n, code in enumerate(["007", "007", "H6"])))
    (tmp_path / "bars.csv").write_text(text)
    call("bars", tmp_path / "bars.csv", "--keep", "contract", "--chunk", 1, "--out", tmp_path / "out.csv")
    assert pl.read_csv(tmp_path / "out.csv", infer_schema=False)["contract"].to_list() == ["007", "007", "H6"]
    with pytest.raises(Stop, match="numbers at first, later 'H6'"):
        build_features(Wish(tmp_path / "bars.csv", tmp_path / "out.parquet", None, tmp_path / "r", ("contract",), chunk=1), lambda _: None)


@pytest.mark.parametrize(("step", "minutes"), [("1m", True), ("5m", False), ("10s", False)])
def test_bars_of_another_length_are_told(step: str, minutes: bool, tmp_path: Path, call: Call) -> None:
    """Of five minutes each, the volatility of a year in vix_premium would be too large by the root of five."""
    times = pl.datetime_range(datetime(2025, 9, 8, 8), datetime(2025, 9, 8, 8, 40), step, eager=True).dt.to_string("%Y-%m-%dT%H:%M:%S")
    (tmp_path / "bars.csv").write_text(bars_of(*((time, "A") for time in times)))
    assert call("bars", tmp_path / "bars.csv", "--out", tmp_path / "out.csv")["minute_bars"] is minutes


def test_bars_beyond_the_grid_of_the_profile_are_counted(tmp_path: Path, call: Call) -> None:
    """A coin of 100 that costs 100,000 ten years later: bins of the first price are a thousandth of what they should be."""
    late = bars_of(*((f"2025-09-08T08:0{n}:00", "A") for n in range(2)), price=100_000.0).splitlines()[1:]
    late += bars_of(("2025-09-08T08:02:00", "A"), price=100_100.0).splitlines()[1:]
    (tmp_path / "bars.csv").write_text(bars_of(("2015-09-08T08:00:00", "A")) + "\n".join(late) + "\n")
    assert call("bars", tmp_path / "bars.csv", "--out", tmp_path / "out.csv")["outside_profile"] == 1
    assert call("bars", tmp_path / "bars.csv", "--bin", 10, "--out", tmp_path / "out.csv")["outside_profile"] == 0


@needs_shared
def test_the_real_bars_are_told_as_they_are(call: Call, tmp_path: Path) -> None:
    facts = call("bars", REAL / "es_1min_raw.csv", "--vix", REAL / "vix_daily.csv", "--out", tmp_path / "out.csv")
    assert (facts["rows"], len(facts["features"]), facts["rejected"], facts["sessions"], facts["gaps"]) == (38513, 54, 0, 36, 87)
    first = pl.read_csv(tmp_path / "out.csv", n_rows=1)
    assert first.columns[0] == "timestamp" and first["timestamp"][0] == "2025-09-11T00:00:00-05:00"


@pytest.mark.parametrize("zone", ["America/Chicago", "Europe/Berlin", "Asia/Tokyo", "Australia/Sydney", "America/Los_Angeles"])
def test_a_bar_knows_no_close_of_the_vix_before_it_was_made(zone: str) -> None:
    """East of Chicago a day begins before the close of the day before is known there: at 00:30 in Tokyo it is 09:30 in Chicago.

    In the two weeks summer time begins there.
    """
    first = date(2025, 2, 20)
    closes = {first + timedelta(days=n): 10.0 + n for n in range(40)}
    vix = _seen(np.array([(day - date(1970, 1, 1)).days for day in closes]), np.array([*closes.values()]))
    moments = [datetime(2025, 3, 3, tzinfo=timezone.utc) + timedelta(minutes=30 * n) for n in range(48 * 14)]
    local = [moment.astimezone(ZoneInfo(zone)).date() for moment in moments]
    time = np.array([int(moment.timestamp() * 1e6) for moment in moments])
    found, unknown = vix.before(np.array([(day - date(1970, 1, 1)).days for day in local]), time)
    made = {day: datetime(day.year, day.month, day.day, 16, tzinfo=ZoneInfo("America/Chicago")) for day in closes}
    for moment, day, close in zip(moments, local, found.close, strict=True):
        known = [closes[one] for one in closes if one < day and made[one] <= moment]
        assert close == known[-1], moment
    assert not unknown.any()


@pytest.mark.parametrize(
    ("text", "digits"), [("1757554200", 10), ("1757554200000", 13), ("1757554200000000", 16), (f"1757554200{123:09}", 19)]
)
def test_a_unix_time_is_read_by_its_digits(text: str, digits: int) -> None:
    assert len(text) == digits and times_of(pl.Series("t", [text]), "UTC").at.tolist() == [1_757_554_200_000_000]
