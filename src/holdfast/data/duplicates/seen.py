"""Which keys stood before: 8 bytes each in memory up to some million, the others in sorted temporary files. Knows no rows.

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


class Seen:
    """Keys that stood before, in sorted stretches that double in length, those that are long enough in files."""

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._in_memory = in_memory
        self._stretches: list[Keys] = []
        self._runs: list[_Run] = []

    def __contains__(self, key: int) -> bool:
        return bool(self.of(np.array([key], np.int64))[0])

    def of(self, keys: Keys) -> Mask:
        """Which of these were added before."""
        found = np.zeros(len(keys), np.bool_)
        for stretch in self._stretches:
            at = np.searchsorted(stretch, keys)
            found |= stretch[np.minimum(at, len(stretch) - 1)] == keys
        for run in self._runs:
            found |= run.has(keys)
        return found

    def add(self, keys: Keys) -> Mask:
        """Add keys in order; which of them stood before, here or earlier among them. Raises Stop(1) where the disk is full."""
        found = self.of(keys)
        fresh, first = np.unique(keys, return_index=True)
        again = np.ones(len(keys), np.bool_)
        again[first] = False
        fresh = fresh[~found[first]]
        while self._stretches and len(self._stretches[-1]) <= len(fresh):
            fresh = np.concatenate([self._stretches.pop(), fresh])
            fresh.sort(kind="stable")
        if len(fresh) >= self._in_memory:
            self._keep(_Run([fresh]))
        elif len(fresh):
            self._stretches.append(fresh)
        return found | again

    def _keep(self, run: _Run) -> None:
        """Put a file to the others; the newest ones of one size become one."""
        self._runs.append(run)
        while len(self._runs) >= _RUNS and self._runs[-_RUNS].size < 2 * self._runs[-1].size:
            self._runs[-_RUNS:] = [_Run([each.keys for each in self._runs[-_RUNS:]], self._runs[-_RUNS:])]


class _Run:
    """Sorted keys in a temporary file: one of `_PAGE` is held, and tells which page to look at. `of`: the files that the keys stand in."""

    def __init__(self, sorted_keys: list[Keys], of: Sequence[_Run] = ()) -> None:
        self.size = sum(map(len, sorted_keys))
        try:
            with tempfile.TemporaryFile() as file:
                written, firsts = 0, []
                for part in _merged(sorted_keys):
                    firsts.append(part[-written % _PAGE :: _PAGE].copy())
                    written += file.write(part.data) // part.itemsize
                    for run in of:
                        run.forget()
                file.write(part[-1:].tobytes() * (-written % _PAGE))  # the last page is full, too
                file.flush()
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            needed = f"{self.size * 8 / 1e6:,.1f} MB of a file in it are needed to know rows that repeat"
            hint = "make room, or name another folder: TMPDIR=/somewhere holdfast data ..."
            raise Stop(BLOCKED, f"{tempfile.gettempdir()} cannot be written ({error.strerror}); {needed}", hint) from None
        self._pages = np.frombuffer(self._map, np.int64).reshape(-1, _PAGE)
        self._firsts = np.concatenate(firsts)

    @property
    def keys(self) -> Keys:
        return self._pages.reshape(-1)[: self.size]

    def has(self, keys: Keys) -> Mask:
        """Which of these are among them."""
        at = np.searchsorted(self._firsts, keys, "right") - 1
        found = np.zeros(len(keys), np.bool_)
        for start in range(0, len(keys), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            found[part] = (self._pages[np.maximum(at[part], 0)] == keys[part, None]).any(axis=1)
        self.forget()
        return found

    def forget(self) -> None:
        """Keep nothing in memory of what was read."""
        self._map.madvise(mmap.MADV_DONTNEED)


def _merged(parts: list[Keys]) -> Iterator[Keys]:
    """Sorted keys of several sorted arrays, a stretch at a time. They have no key in common."""
    at = [0] * len(parts)
    while any(begin < len(part) for begin, part in zip(at, parts, strict=True)):
        windows = [part[begin : begin + _WINDOW] for begin, part in zip(at, parts, strict=True)]
        cut = [window[-1] for window, begin, part in zip(windows, at, parts, strict=True) if begin + len(window) < len(part)]
        ends = [int(np.searchsorted(window, min(cut), "right")) if cut else len(window) for window in windows]
        stretch = np.concatenate([window[:end] for window, end in zip(windows, ends, strict=True)])
        stretch.sort(kind="stable")
        yield stretch
        at = [begin + end for begin, end in zip(at, ends, strict=True)]
