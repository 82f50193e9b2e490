"""Which keys stood before, and where: 8 bytes each, and 8 for the place where that is asked for, in memory up to some million, the others
in sorted temporary files. Knows no rows.

The files have no name: they are gone with the process, whatever ends it.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import BLOCKED, Stop

Keys = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_IN_MEMORY = 1 << 21  # keys: 16 MiB
_PAGE = 512  # keys of which one is held in memory
_AT_ONCE = 256  # pages that are looked through together
_RUNS = 4  # files of about one size that are made one
_WINDOW = 1 << 18  # keys of each file that are merged together


class SeenKeys:
    """Keys that stood before, in sorted stretches that double in length, those that are long enough in files.

    placed: keep with each key a number, the place of the one that stood first.
    """

    def __init__(self, in_memory: int = _IN_MEMORY, placed: bool = False) -> None:
        self._in_memory = in_memory
        self._placed = placed
        self._stretches: list[tuple[Keys, Keys]] = []
        self._runs: list[_Run] = []

    def __contains__(self, key: int) -> bool:
        return bool(self.of(np.array([key], np.int64))[0])

    def of(self, keys: Keys) -> Mask:
        """Return which of the keys were added before, bool [keys]."""
        found: Mask = self.places_of(keys) >= 0
        return found

    def places_of(self, keys: Keys) -> Keys:
        """Return the place of each key that was added before, 0 where places are not kept; -1 for the others."""
        places = np.full(len(keys), -1, np.int64)
        for known, where in self._stretches:
            at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
            _note(places, known[at] == keys, where, at)
        for run in self._runs:
            _note(places, *run.look_for(keys))
        return places

    def add(self, keys: Keys) -> Mask:
        """Add keys in order; return which of them stood before, here or earlier among them. Raises Stop(1) where the disk is full."""
        return self.add_at(keys, np.zeros(len(keys) if self._placed else 0, np.int64)) >= 0

    def add_at(self, keys: Keys, places: Keys) -> Keys:
        """Add keys with their places, from 0 on; return of each the place of the first that was equal, -1 without one."""
        found = self.places_of(keys)
        fresh, first, equal = np.unique(keys, return_index=True, return_inverse=True)
        again = found < 0
        again[first] = False
        found[again] = places[first][equal[again]] if self._placed else 0
        new = found[first] < 0
        fresh, added = fresh[new], places[first[new]] if self._placed else places
        while self._stretches and len(self._stretches[-1][0]) <= len(fresh):
            fresh, added = _sorted([self._stretches.pop(), (fresh, added)])
        if len(fresh) >= self._in_memory:
            self._keep(_Run([(fresh, added)]))
        elif len(fresh):
            self._stretches.append((fresh, added))
        return found

    def _keep(self, run: _Run) -> None:
        """Put a file to the others; the newest ones of one size become one."""
        self._runs.append(run)
        while len(self._runs) >= _RUNS and self._runs[-_RUNS].size < 2 * self._runs[-1].size:
            self._runs[-_RUNS:] = [_Run([(each.keys, each.places) for each in self._runs[-_RUNS:]], self._runs[-_RUNS:])]


def _note(places: Keys, found: Mask, where: Keys, at: Keys) -> None:
    """Put down the places of those that were found."""
    places[found] = where[at[found]] if len(where) else 0


def _sorted(parts: list[tuple[Keys, Keys]]) -> tuple[Keys, Keys]:
    """Merge several sorted arrays of keys into one, with their places."""
    keys = np.concatenate([part for part, _ in parts])
    places = np.concatenate([where for _, where in parts])
    if not len(places):
        keys.sort(kind="stable")
        return keys, places
    order = np.argsort(keys, kind="stable")
    return keys[order], places[order]


class _Run:
    """Sorted keys in a temporary file: one of `_PAGE` is held, and tells which page to look at. Places lie in a second file.

    `of`: the files that the keys stand in.
    """

    def __init__(self, parts: list[tuple[Keys, Keys]], of: Sequence[_Run] = ()) -> None:
        self.size = sum(len(keys) for keys, _ in parts)
        self._maps: list[mmap.mmap] = []
        placed = bool(len(parts[0][1]))
        try:
            with tempfile.TemporaryFile() as file, tempfile.TemporaryFile() as beside:
                written, firsts = 0, []
                for keys, places in _merged(parts):
                    firsts.append(keys[-written % _PAGE :: _PAGE].copy())
                    written += file.write(keys.data) // keys.itemsize
                    beside.write(places.data)
                    for run in of:
                        run.forget()
                file.write(keys[-1:].tobytes() * (-written % _PAGE))  # the last page is full, too
                for each in (file, beside) if placed else (file,):
                    each.flush()
                    self._maps.append(mmap.mmap(each.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            needed = f"{self.size * (16 if placed else 8) / 1e6:,.1f} MB of a file in it are needed to know rows that repeat"
            hint = "make room, or name another folder: TMPDIR=/somewhere holdfast data ..."
            raise Stop(BLOCKED, f"{tempfile.gettempdir()} cannot be written ({error.strerror}); {needed}", hint) from None
        self._pages = np.frombuffer(self._maps[0], np.int64).reshape(-1, _PAGE)
        self.places = np.frombuffer(self._maps[1], np.int64) if placed else np.zeros(0, np.int64)
        self._firsts = np.concatenate(firsts)

    @property
    def keys(self) -> Keys:
        return self._pages.reshape(-1)[: self.size]

    def look_for(self, keys: Keys) -> tuple[Mask, Keys, Keys]:
        """Return which of the keys are in this run; all places, and the number of each key's."""
        page = np.maximum(np.searchsorted(self._firsts, keys, "right") - 1, 0)
        found = np.zeros(len(keys), np.bool_)
        at = np.zeros(len(keys), np.int64)
        for start in range(0, len(keys), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            same = self._pages[page[part]] == keys[part, None]
            found[part] = same.any(axis=1)
            at[part] = page[part] * _PAGE + same.argmax(axis=1)
        self.forget()
        return found, self.places, at

    def forget(self) -> None:
        """Keep nothing in memory of what was read."""
        for each in self._maps:
            each.madvise(mmap.MADV_DONTNEED)


def _merged(parts: list[tuple[Keys, Keys]]) -> Iterator[tuple[Keys, Keys]]:
    """Yield the merged keys of several sorted arrays with their places, a stretch at a time. They have no key in common."""
    at = [0] * len(parts)
    while any(begin < len(keys) for begin, (keys, _) in zip(at, parts, strict=True)):
        windows = [keys[begin : begin + _WINDOW] for begin, (keys, _) in zip(at, parts, strict=True)]
        cut = [window[-1] for window, begin, (keys, _) in zip(windows, at, parts, strict=True) if begin + len(window) < len(keys)]
        ends = [int(np.searchsorted(window, min(cut), "right")) if cut else len(window) for window in windows]
        stretches = zip(windows, ends, at, parts, strict=True)
        yield _sorted([(window[:end], places[begin : begin + end]) for window, end, begin, (_, places) in stretches])
        at = [begin + end for begin, end in zip(at, ends, strict=True)]
