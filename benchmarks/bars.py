"""`data bars` beside a plain pandas version of the same features, and its memory as the bars grow.

    pip install pandas && python benchmarks/bars.py [--plain 20000] [--sizes 100000,1000000,10000000]

pandas: rolling windows and groupby where there is one, and for the volume profile at each bar a groupby over the bars so far, as one
would write it first. It is timed on `--plain` bars (a million take it a quarter of an hour); holdfast on the same file, then on the sizes.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

BIN, SEED = 0.5, 1


_METER = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
sys.exit(status)
"""


def holdfast(*arguments: object) -> tuple[float, float, int]:
    """(seconds, seconds of all its CPUs, most bytes) of a command; a child's most bytes begin with those of the process that starts it."""
    began = time.perf_counter()
    command = [sys.executable, "-c", _METER, sys.executable, "-m", "holdfast", "data", "bars", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"data bars {arguments} ended with {done.returncode}")
    cpu, most = done.stdout.split()
    return time.perf_counter() - began, float(cpu), int(most)


def levels(volumes: pd.Series) -> tuple[float, float, float]:
    """VPOC and the edges of the value area of volumes by bin."""
    poc = int(volumes.idxmax())
    at = volumes.to_dict()
    lowest = highest = poc
    first, last, inside, wanted = min(at), max(at), at[poc], 0.7 * volumes.sum()
    while inside < wanted:
        if highest < last and (at.get(highest + 1, 0) >= at.get(lowest - 1, 0) or lowest <= first):
            highest += 1
            inside += at.get(highest, 0)
        else:
            lowest -= 1
            inside += at.get(lowest, 0)
    return (poc + 0.5) * BIN, (highest + 1) * BIN, lowest * BIN


def plain(file: Path, vix_file: Path) -> pd.DataFrame:
    """The 54 features with pandas."""
    bars = pd.read_csv(file)
    local = pd.to_datetime(bars.timestamp, utc=True).dt.tz_convert("America/Chicago")
    bars["session"] = (local + pd.Timedelta(hours=7)).dt.date
    o, h, low, c, v = (bars[name].astype(float) for name in ("open", "high", "low", "close", "volume"))
    r, by = np.log(c).diff(), bars.groupby("session")
    typical = (h + low + c) / 3
    out = pd.DataFrame({"timestamp": bars.timestamp})
    for k in (1, 5, 15, 30, 60, 240):
        out[f"return_{k}"] = np.log(c / c.shift(k))
    first_open = by.open.transform("first")
    out["return_session"] = np.log(c / first_open)
    last = by.close.last().shift(1)
    out["gap_open"] = np.log(first_open / bars.session.map(last))
    out["zscore_60"] = (c - c.rolling(60).mean()) / c.rolling(60).std(ddof=0)
    out["efficiency_60"] = (c - c.shift(60)).abs() / c.diff().abs().rolling(60).sum()
    up, down = c.diff().clip(lower=0).rolling(14).sum(), (-c.diff()).clip(lower=0).rolling(14).sum()
    out["rsi_14"] = 100 * up / (up + down)
    out["range_1"], out["body"] = np.log(h / low), np.log(c / o)
    out["upper_wick"], out["lower_wick"] = np.log(h / np.maximum(o, c)), np.log(np.minimum(o, c) / low)
    out["true_range"] = (np.maximum(h, c.shift()) - np.minimum(low, c.shift())) / c.shift()
    top, bottom = h.rolling(60).max(), low.rolling(60).min()
    out["close_in_range_60"] = (c - bottom) / (top - bottom)
    top, bottom = by.high.cummax(), by.low.cummin()
    out["close_in_session"], out["range_session"] = (c - bottom) / (top - bottom), np.log(top / bottom)
    out["volume_log"], out["volume_session"] = np.log1p(v), np.log1p(by.volume.cumsum())
    out["volume_relative_60"] = v / v.rolling(60).mean()
    out["volume_z_240"] = (v - v.rolling(240).mean()) / v.rolling(240).std(ddof=0)
    out["signed_volume_60"] = (np.sign(c - o) * v).rolling(60).sum() / v.rolling(60).sum()
    vwap = (typical * v).groupby(bars.session).cumsum() / by.volume.cumsum()
    out["vwap_distance"], out["illiquidity_60"] = np.log(c / vwap), 1e6 * (r.abs() / (v * c)).rolling(60).mean()
    for k in (15, 60, 240, 1380):
        out[f"volatility_{k}"] = np.sqrt((r**2).rolling(k).mean())
    out["volatility_ratio"] = out.volatility_15 / out.volatility_240
    out["parkinson_60"] = np.sqrt((np.log(h / low) ** 2).rolling(60).mean() / (4 * math.log(2)))
    klass = np.log(h / low) ** 2 / 2 - (2 * math.log(2) - 1) * np.log(c / o) ** 2
    out["garman_klass_60"] = np.sqrt(klass.rolling(60).mean().clip(lower=0))
    vix = pd.read_csv(vix_file, parse_dates=["DATE"])
    vix["rank"] = vix.CLOSE.rolling(252).apply(lambda year: (year <= year[-1]).mean(), raw=True)
    vix["one"], vix["five"] = vix.CLOSE.shift(1), vix.CLOSE.shift(5)
    day = pd.DataFrame({"day": local.dt.tz_localize(None).dt.normalize().astype(vix.DATE.dtype)})
    seen = pd.merge_asof(day, vix, left_on="day", right_on="DATE", allow_exact_matches=False)
    out["vix_close"], out["vix_rank_252"] = seen.CLOSE, seen["rank"]
    out["vix_change_1"], out["vix_change_5"] = np.log(seen.CLOSE / seen.one), np.log(seen.CLOSE / seen.five)
    out["vix_premium"] = np.log(seen.CLOSE / 100 / (out.volatility_1380 * math.sqrt(252 * 1380)))
    minute = local.dt.hour * 60 + local.dt.minute
    out["minute_sin"], out["minute_cos"] = np.sin(2 * math.pi * minute / 1440), np.cos(2 * math.pi * minute / 1440)
    out["weekday"] = pd.to_datetime(bars.session).dt.weekday
    out["session_minutes"] = (local - local.groupby(bars.session).transform("first")).dt.total_seconds() / 60
    out["minutes_since_bar"] = local.diff().dt.total_seconds() / 60
    out["regular_hours"] = ((minute >= 510) & (minute < 900)).astype(float)
    return pd.concat([out, profiles(bars, typical, c)], axis=1)


def profiles(bars: pd.DataFrame, typical: pd.Series, close: pd.Series) -> pd.DataFrame:
    """The features of the volume profile, a groupby at each bar."""
    bars = bars.assign(bin=np.floor(typical / BIN).astype(int))
    starts = bars.groupby("session", sort=False).bin.transform(lambda one: one.index[0])
    rows, of_session, before = [], {}, None
    for t in range(len(bars)):
        first, price = starts[t], close[t]
        if t and starts[t - 1] != first:
            before, of_session = of_session[t - 1], {}
        here = bars.iloc[first : t + 1].groupby("bin").volume.sum()
        poc, vah, val = levels(here)
        of_session[t] = poc
        known, most = here.to_dict(), here.max()
        row = {
            "vpoc_distance": math.log(price / poc),
            "vah_distance": math.log(price / vah),
            "val_distance": math.log(price / val),
            "value_area_width": math.log(vah / val),
            "vpoc_migration": math.log(poc / of_session[t - 60 if t - 60 >= first else first]),
            "node_volume": known.get(math.floor(price / BIN), 0) / here.mean(),
            "node_count": sum(x > known.get(n - 1, 0) and x >= known.get(n + 1, 0) and x >= most / 2 for n, x in known.items()),
            "vpoc_before_distance": math.log(price / before) if before else math.nan,
        }
        if t >= 1379:
            poc, vah, val = levels(bars.iloc[t - 1379 : t + 1].groupby("bin").volume.sum())
            row |= {"rolling_vpoc_distance": math.log(price / poc), "rolling_value_position": (price - val) / (vah - val)}
        rows.append(row)
    return pd.DataFrame(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", type=int, default=20_000, help="bars that pandas computes, too")
    parser.add_argument("--sizes", default="100000,1000000,10000000", help="bars of holdfast's runs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bars, vix = folder / "bars.csv", folder / "vix.csv"
        holdfast(bars, "--vix", vix, "--make", arguments.plain, "--seed", SEED)
        one_contract = pd.read_csv(bars).drop(columns="contract")  # pandas has no rule for changes of contract
        one_contract.to_csv(bars, index=False)
        began, busy = time.perf_counter(), time.process_time()
        wanted = plain(bars, vix)
        theirs, their_cpu = time.perf_counter() - began, time.process_time() - busy
        ours, our_cpu, memory = holdfast(bars, "--vix", vix, "--out", folder / "out.csv", "--bin", BIN)
        found = pd.read_csv(folder / "out.csv")
        apart = max(float(((found[name] - wanted[name]).abs() / wanted[name].abs().clip(lower=1)).max()) for name in found.columns[1:])
        print(
            f"{arguments.plain:>12,} bars  pandas {theirs:8.1f} s   holdfast {ours:6.2f} s, {memory >> 20} MiB   {theirs / ours:.0f} times",
            flush=True,
        )
        print(f"{'':12}  of CPU: pandas {their_cpu:.1f} s, holdfast {our_cpu:.1f} s: {their_cpu / our_cpu:.0f} times", flush=True)
        print(f"{'':12}  largest difference of any value: {apart:.1e} (of values below 1: absolute)", flush=True)
        for size in map(int, filter(None, arguments.sizes.split(","))):
            bars, vix, out = folder / "b.csv", folder / "v.csv", folder / "out.parquet"
            for file in (bars, vix, out):
                file.unlink(missing_ok=True)
            holdfast(bars, "--vix", vix, "--make", size, "--seed", SEED)
            seconds, busy, memory = holdfast(bars, "--vix", vix, "--out", out, "--bin", BIN)
            rate = theirs / arguments.plain * size / seconds
            print(
                f"{size:>12,} bars  holdfast {seconds:6.1f} s ({busy:.1f} of CPU), {memory >> 20} MiB; pandas' pace: {rate:.0f} times",
                flush=True,
            )


if __name__ == "__main__":
    main()
