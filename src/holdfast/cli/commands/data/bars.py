"""`holdfast data bars`: features of minute bars of a market, merged with a daily VIX, none of which sees a later bar."""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

from holdfast.base.disk import place_of
from holdfast.base.errors import BLOCKED, DONE, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, is_full, replacing
from holdfast.base.inert import say
from holdfast.base.units import counted

EXAMPLE = "holdfast data bars es-1min.csv --vix vix-daily.csv --out features.parquet --keep close_joined"
_SUFFIXES = (".csv", ".parquet")


def add_arguments(bars: argparse.ArgumentParser) -> None:
    bars.add_argument("file", type=Path, metavar="FILE", help="CSV or Parquet: timestamp, open, high, low, close, volume (and contract)")
    bars.add_argument("--vix", type=Path, metavar="FILE", help="daily VIX: date, close; without it the features of the VIX are left out")
    bars.add_argument("--out", type=Path, metavar="FILE", help="where the features go: .csv or .parquet")
    bars.add_argument("--keep", default="", metavar="NAME,NAME", help="columns of the bars to carry along behind the features")
    bars.add_argument("--rejects", type=Path, metavar="FILE", help="where rows that are not bars go (default: OUT.rejects.jsonl)")
    bars.add_argument("--zone", default="America/Chicago", help="time zone of the exchange (default: America/Chicago)")
    bars.add_argument("--session", default="17:00", metavar="HH:MM", help="local time at which a trading day begins (default: 17:00)")
    bars.add_argument("--bin", type=float, metavar="PRICE", help="width of a bin of the volume profile (default: of the first price)")
    bars.add_argument("--chunk", type=int, default=100_000, metavar="N", help="bars in memory at once (default: 100000)")
    bars.add_argument("--make", type=int, metavar="N", help="write FILE and the file of --vix first: N made bars and their VIX")
    bars.add_argument("--seed", type=int, default=0, help="of --make (default: 0)")
    bars.add_argument("--signal", type=float, default=0.0, help="of --make: how far a return leans against the one before (default: 0)")
    bars.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    if arguments.make is not None:
        return _make(arguments)
    _refuse(arguments)
    from holdfast.tables.bars.build import Wish, build_features
    from holdfast.tables.bars.vix import read_vix

    began = time.monotonic()
    wish = Wish(
        file=arguments.file,
        out=arguments.out,
        vix=read_vix(arguments.vix) if arguments.vix else None,
        rejects=arguments.rejects or arguments.out.with_name(arguments.out.name + ".rejects.jsonl"),
        keep=tuple(name.strip() for name in arguments.keep.split(",") if name.strip()),
        zone=arguments.zone,
        begin=_minutes(arguments.session),
        bin=arguments.bin,
        chunk=arguments.chunk,
    )
    try:
        answer = build_features(wish, lambda _: None)
    except OSError as error:
        if is_full(error):
            raise Stop(BLOCKED, f"the disk of {arguments.out} is full; nothing was written", "make room, or choose another place") from None
        raise at_place(error, error.filename or arguments.file, "cannot be read or written", "correct the path") from None
    answer["seconds"] = round(time.monotonic() - began, 3)
    if not arguments.json:
        _tell(answer)
    return DONE, answer


def _make(arguments: argparse.Namespace) -> tuple[int, Json]:
    """Write made bars, and a made VIX, where there is no file yet."""
    _need("polars")
    from holdfast.tables.bars.made import made_bars, made_vix

    if arguments.make < 1 or arguments.seed < 0:
        raise Stop(
            USAGE, f"--make {arguments.make} --seed {arguments.seed}: at least one bar, and a seed of 0 or more", "as in --make 50000"
        )
    if not 0 <= arguments.signal < 0.9:
        raise Stop(USAGE, f"--signal {arguments.signal}: from 0 to below 0.9", "0 makes returns that nothing predicts")
    if arguments.out is not None:
        raise Stop(
            USAGE, "--make writes FILE and the file of --vix; --out is for features", "make the bars, then give the command without --make"
        )
    for file in filter(None, (arguments.file, arguments.vix)):
        if file.exists():
            raise Stop(USAGE, f"{file} is there already; made bars overwrite nothing", "choose another name")
        file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(arguments.file) as handle:
            for number, chunk in enumerate(made_bars(arguments.make, arguments.seed, arguments.signal)):
                chunk.write_csv(handle, include_header=number == 0)
        if arguments.vix:
            with replacing(arguments.vix) as handle:
                made_vix(arguments.make, arguments.seed).write_csv(handle)
    except OSError as error:
        raise at_place(error, error.filename or arguments.file, "cannot be written", "choose another place") from None
    if not arguments.json:
        say(f"{counted(arguments.make, 'made bar')}: {arguments.file}" + (f"; their VIX: {arguments.vix}" if arguments.vix else ""))
    return DONE, {
        "rows": arguments.make,
        "file": str(arguments.file),
        "vix": str(arguments.vix) if arguments.vix else None,
        "seed": arguments.seed,
    }


def _need(*packages: str) -> None:
    if missing := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise Stop(BLOCKED, f"features of bars need {' and '.join(missing)}", f"pip install {' '.join(missing)}")


def _refuse(arguments: argparse.Namespace) -> None:
    if arguments.out is None:
        raise Stop(USAGE, "say where the features go: --out FILE", f"for example: {EXAMPLE}")
    _need("polars", *(["pyarrow"] if arguments.out.suffix.lower() == ".parquet" else []))
    if arguments.out.suffix.lower() not in _SUFFIXES:
        raise Stop(USAGE, f"{arguments.out}: features are written as CSV or Parquet", f"name it {arguments.out.with_suffix('.csv')}")
    inputs = {"FILE": arguments.file, "--vix": arguments.vix}
    for name, file in inputs.items():
        if file is not None and not file.is_file():
            raise Stop(BLOCKED, f"{name} {file}: {'it is a folder' if file.is_dir() else 'no such file'}", "correct the path")
        if file is not None and place_of(file) == place_of(arguments.out):
            raise Stop(USAGE, f"{arguments.out} is one of the inputs, which are never overwritten", "choose another name")
    if arguments.out.is_dir():
        raise Stop(USAGE, f"{arguments.out} is a folder", "name a file in it")
    if arguments.chunk < 1:
        raise Stop(USAGE, f"--chunk {arguments.chunk}: at least one bar is needed", "leave it out, or give 100000")
    if arguments.bin is not None and not 0 < arguments.bin < float("inf"):
        raise Stop(USAGE, f"--bin {arguments.bin}: a width above 0 is needed", "a tick of the contract or a few of them")


def _minutes(text: str) -> int:
    """Parse HH:MM to minutes after midnight. Raises Stop(2)."""
    hours, _, minutes = text.partition(":")
    if not (hours.isdecimal() and minutes.isdecimal() and int(hours) < 24 and int(minutes) < 60):
        raise Stop(USAGE, f"--session {text}: not a time of day", "write it as 17:00")
    return int(hours) * 60 + int(minutes)


def _tell(answer: Json) -> None:
    say(f"{counted(answer['rows'], 'bar')} of {counted(answer['sessions'], 'session')}: {answer['out']}")
    say(f"from {answer['first']} to {answer['last']}")
    say(f"{len(answer['features'])} features; volume profile in bins of {answer['bin']:g}; {answer['seconds']:.1f} s")
    if answer["outside_profile"]:
        say(f"! {counted(answer['outside_profile'], 'bar')} lie more than 2,000 bins from the first of their session: the profile counts")
        say(f"  them at its edge, and its features say little. Give --bin, about a ten-thousandth of the price; it is {answer['bin']:g}")
    if not answer["minute_bars"]:
        say("! most bars are not a minute apart: windows count bars all the same, and vix_premium takes 1,380 of them for a day")
    if answer["gaps"]:
        say(f"gaps inside sessions: {answer['gaps']:,}, {counted(answer['missing_minutes'], 'minute')} without a bar")
    if answer["contracts"] > 1:
        say(f"contracts: {answer['contracts']:,}; from each change on prices are scaled, so that it is no return")
        say("kept prices are as they stood; to learn from, --keep close_joined keeps scaled ones")
    if answer["without_offset"]:
        say(f"{counted(answer['without_offset'], 'timestamp')} without an offset, taken as local time of {answer['zone']}")
    if answer["without_vix"]:
        say(f"{counted(answer['without_vix'], 'bar')} without a VIX: no row of the ten days before")
    if answer["rejected"]:
        reasons = ", ".join(f"{reason} {number:,}" for reason, number in answer["by_reason"].items())
        say(f"rejected: {counted(answer['rejected'], 'row')} ({reasons}); each with its reason: {answer['rejects']}")
    most = max(answer["empty"].items(), key=lambda item: item[1], default=None)
    if most:
        say(f"empty where too few bars lie before: {len(answer['empty'])} features, most of all {most[0]} ({counted(most[1], 'bar')})")
