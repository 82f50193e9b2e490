"""Keep readings of the machine beside a run, from a process of its own: a driver that hangs or crashes touches nothing.

    python -m holdfast.machine.readings.keep RUN JOURNAL

It ends when its standard input does, or its parent is gone. A disk that takes nothing loses a reading, no more.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.base.errors import WRONG_VALUES, DamagedFile, Stop
from holdfast.base.files import Json, append_line, last_line, newest_lines, read_json, read_sound_lines, write_bytes
from holdfast.base.identity import command_of
from holdfast.machine.place import Place
from holdfast.machine.readings.now import EVERY_S, STALE_S, MachineReader
from holdfast.machine.readings.signs import READINGS

FILE = "readings.jsonl"
_MOST_BYTES = 512 << 10
_NEWEST_BYTES = 128 << 10
_GAPS, _FEWEST = 10, 3  # between the newest readings, by which they are taken on: one of a few may be a pause of the run or a sleep
_LONGEST_S = 3600.0
_GENERATIONS = 40  # from a process up to the one of ours that started it


class Keeper:
    """Appends to a file; where that is full every second reading goes, and from then on they are taken half as often."""

    def __init__(self, file: Path, most_bytes: int = _MOST_BYTES) -> None:
        self._file, self._most = file, most_bytes
        self.every_s = _usual_gap(kept(file))

    def add(self, reading: Json) -> None:
        append_line(self._file, reading)
        if self._file.stat().st_size > self._most:
            left = kept(self._file)[::2]
            write_bytes(self._file, b"".join(json.dumps(one).encode() + b"\n" for one in left), durable=False)
            self.every_s *= 2


def kept(file: Path) -> list[Json]:
    """Read what was kept, oldest first, broken lines left out; empty where there is no such file. Raises OSError."""
    return [one for one in read_sound_lines(file) if isinstance(one.get("time"), int | float) and isinstance(one.get("gpus"), list)]


def _usual_gap(readings: Sequence[Json]) -> float:
    """Return the seconds between two readings, as the newest were taken."""
    times = [one["time"] for one in readings[-_GAPS - 1 :]]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return max(EVERY_S, min(statistics.median(gaps), _LONGEST_S)) if len(gaps) >= _FEWEST else EVERY_S


def up_to_date(readings: list[Json], now: float) -> list[Json]:
    """Return the readings where the last is of `now`, by the clock of theirs; none where nobody takes any for a while."""
    return readings if readings and now - readings[-1]["time"] <= STALE_S + 2 * _usual_gap(readings) else []


def newest(file: Path) -> list[Json]:
    """Read the readings that signs are judged by; empty where they cannot be read."""
    try:
        found = newest_lines(file, _NEWEST_BYTES)
    except (OSError, DamagedFile):
        return []
    return [one for one in found if isinstance(one.get("time"), int | float) and isinstance(one.get("gpus"), list)][-READINGS:]


def with_owners(reading: Json, place: Place, ours: set[int], on_cpu: bool = False) -> Json:
    """Return the reading with `others` of each card instead of its holders: {pid: {bytes, command}}; None where that cannot be known.

    ours of a card: whether a process of the run's is among its holders, never where the run trains on the CPU; None where none is seen.
    """
    cards = []
    for card in reading["gpus"]:
        holders: dict[str, int] | None = card.pop("holders")
        unseen = holders is None or any(_parent(place, int(pid)) is None for pid in holders)  # those of other containers have other pids
        others, held = None, False if on_cpu else None
        if holders is not None and not unseen:
            strangers = {pid: size for pid, size in holders.items() if not _is_below(place, int(pid), ours)}
            others = {pid: {"bytes": size, "command": command_of(int(pid)) if place.real else ""} for pid, size in strangers.items()}
            held = len(strangers) < len(holders) if holders and not on_cpu else held
        cards.append(card | {"others": others, "ours": held})
    return reading | {"gpus": cards}


def _is_below(place: Place, pid: int, ours: set[int]) -> bool:
    for _ in range(_GENERATIONS):
        if pid in ours:
            return True
        parent = _parent(place, pid)
        if not parent:
            return False
        pid = parent
    return False


def _parent(place: Place, pid: int) -> int | None:
    fields = (place.text(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None


def _newest_attempt(run: Path) -> Path | None:
    return max(run.glob("attempts/[0-9]*"), key=lambda one: int(one.name) if one.name.isdecimal() else 0, default=None)


def _ours(attempt: Path | None) -> set[int]:
    """Return the pids of the supervisor and of what watches over the newest attempt, which may be older than it."""
    shim = read_json(attempt / "nurse.json") if attempt else None
    return {os.getppid(), *([shim["pid"]] if shim else [])}


def _on_cpu(run: Path, attempt: Path | None) -> bool:
    """Return whether the attempt was started to train on the CPU; what a command of others trains on is not known."""
    orders = read_json(attempt / "launch.json") if attempt and not (run / "command.json").exists() else None
    return ((orders or {}).get("settings") or {}).get("device") == "cpu"


def keep(run: Path, journal: str, wait: Callable[[float], bool]) -> None:
    """Read and keep until `wait`, given seconds, says that it is over."""
    place, keeper = Place(), Keeper(run / FILE)
    reader = MachineReader(place)
    every_s = EVERY_S / 2  # a short run has a reading too
    while not wait(every_s):
        every_s = keeper.every_s
        with contextlib.suppress(OSError, Stop, *WRONG_VALUES):  # the supervisor meets the same, and tells of it
            attempt = _newest_attempt(run)
            found = with_owners(reader.read(), place, _ours(attempt), _on_cpu(run, attempt))
            found["disk_free_bytes"] = os.statvfs(run).f_bavail * os.statvfs(run).f_frsize
            keeper.add(found | {"step": (last_line(run / journal) or {}).get("step")})


def main(argv: list[str]) -> int:
    parent = os.getppid()
    os.chdir(argv[0])  # a run folder that is renamed takes its file along

    def over(seconds: float) -> bool:
        ready, _, _ = select.select([0], [], [], seconds)
        return bool(ready) or os.getppid() != parent

    keep(Path(), argv[1], over)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
