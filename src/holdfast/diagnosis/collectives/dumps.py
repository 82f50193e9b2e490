"""Read the dumps of torch's flight recorder as inert data. They are pickles: a name in one is refused, so nothing of it is ever run.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp (versions 2.x); a rank writes PREFIX followed by its number.
"""

from __future__ import annotations

import ast
import io
import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from holdfast.base.safe_open import read_small

LARGEST = 1 << 26  # bytes of a dump; 2,000 collectives with stacks take some 4 MB
MOST_RANKS, MOST_ENTRIES = 16_384, 100_000
_FRAMES = 8
_NUMBER = re.compile(r"(\d{1,6})(?:\.json|\.pkl|\.pickle)?$")
_BROKEN = (pickle.UnpicklingError, ValueError, EOFError, KeyError, TypeError, IndexError, AttributeError, MemoryError, RecursionError)


@dataclass(frozen=True)
class CollectiveEntry:
    """An operation that a rank has entered. number: of its group and kind; frames: where it was called, the innermost first."""

    group: str
    number: int
    name: str
    completed: bool
    between_two: bool
    frames: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dump:
    """What a rank wrote down: what it has entered, or of it what is not completed.

    groups: the members of each process group it is in; described: what each is called; completed: the number up to which the collectives
    of a group are. since: when the oldest entry was made, 0 where it is not told; written: when the file was; both in ns since the epoch.
    """

    rank: int
    groups: dict[str, tuple[int, ...]]
    described: dict[str, str]
    entries: tuple[CollectiveEntry, ...]
    completed: dict[str, int]
    since: int = 0
    written: int = 0


class _Inert(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("refers to something beside it")


def read_dumps(folder: Path) -> dict[int, Dump]:
    """Read the dumps in a folder, by rank; files that are none, or are torn, are left out.

    So is one written before the oldest entry of another was made: an earlier start of the program left it.
    """
    found: dict[int, Dump] = {}
    for file in _candidates(folder):
        if dump := read_dump(file):
            found.setdefault(dump.rank, dump)
        if len(found) >= MOST_RANKS:
            break
    since = max((dump.since for dump in found.values()), default=0)
    return {rank: dump for rank, dump in found.items() if dump.written >= since}


def read_dump(file: Path) -> Dump | None:
    """Read a rank's dump, pickled or JSON; None for anything else."""
    number = _NUMBER.search(file.name)
    if number is None:
        return None
    try:
        return replace(_dump_of(int(number[1]), _values(read_small(file, LARGEST))), written=file.stat().st_mtime_ns)
    except (OSError, *_BROKEN):
        return None


def _candidates(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(file for file in folder.iterdir() if _NUMBER.search(file.name))
    except OSError:
        return


def _values(content: bytes) -> dict[str, Any]:
    """Load the plain values of a dump: numbers, texts, lists and mappings. Raises what `_BROKEN` lists."""
    found = json.loads(content) if content[:1] == b"{" else _Inert(io.BytesIO(content)).load()
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list) or "pg_config" not in found:
        raise ValueError("not a dump of the flight recorder")
    return found


def _dump_of(rank: int, values: dict[str, Any]) -> Dump:
    groups, described = {}, {}
    for group in values["pg_config"].values():
        name = str(group["name"])
        members = group["ranks"]
        groups[name] = tuple(int(value) for value in (ast.literal_eval(members) if isinstance(members, str) else members))
        described[name] = str(group.get("desc") or name)
    entries = tuple(_entry_of(entry) for entry in values["entries"][-MOST_ENTRIES:])
    completed = {
        entry.group: entry.number for entry in sorted(entries, key=lambda entry: entry.number) if entry.completed and not entry.between_two
    }
    status = values.get("pg_status") or {}
    for entry in values["entries"]:
        if not entry.get("is_p2p") and (known := status.get(str(entry.get("pg_id")))):
            completed[str(entry["process_group"][0])] = int(known["last_completed_collective"])
    since = min((int(entry.get("time_created_ns") or 0) for entry in values["entries"]), default=0)
    return Dump(rank, groups, described, entries, completed, since)


def _entry_of(values: dict[str, Any]) -> CollectiveEntry:
    between_two = bool(values.get("is_p2p"))
    number = values["p2p_seq_id"] if between_two else values["collective_seq_id" if "collective_seq_id" in values else "seq_id"]
    frames = values.get("frames") or ()
    return CollectiveEntry(
        group=str(values["process_group"][0]),
        number=int(number),
        name=str(values["profiling_name"]),
        completed=values.get("state") == "completed",
        between_two=between_two,
        frames=tuple(f"{frame['filename']}:{frame['line']} in {frame['name']}" for frame in list(frames)[:_FRAMES]),
    )
