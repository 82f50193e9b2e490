"""Which rows stood before, exactly or nearly. Numbers in, verdicts out; knows no files.

Exact: a 64-bit hash of the text in lower case with single spaces. Near: MinHash over runs of six bytes (one permutation, 64 bins of
8 bits), candidates by 8 bands of 6 bins, each compared with its candidates bin by bin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from holdfast.data.duplicates.seen import Keys, Mask
from holdfast.data.judge.judge import own_prompt
from holdfast.data.judge.turns import Example

BINS = 64
_RUN = 6  # bytes of text that are hashed together
_NONE = 0xFFFFFFFF  # a bin without a run
_AT_ONCE = 1 << 16  # bytes whose hashes are made together: more go beyond the caches of the processor
_FEWEST_RUNS = 48  # shorter texts are too little to be called nearly equal
_BANDS, _ROWS = 8, 6
_ALIKE = 52  # bins of 64 that agree: an estimated likeness of 0.8
_NEIGHBOURS = 4  # rows of one band that each is compared with when groups are wanted
_MOST_KEPT = 1 << 21  # newest rows that later ones are compared with: 128 MiB of bins, 64 MiB of bands
_REHASHED = 1 << 16  # rows at a time
Signatures = npt.NDArray[np.uint8]


def compared_texts(prompt: str, answer: str, beside: str, mark: str) -> tuple[str, str]:
    """Return a row's text, as rows are held against each other, and that of the row which says the opposite; "" where none does.

    prompt: normal; beside: the worse answer of a pair; mark: of a marked answer, `good` or `bad`.
    """
    answer, beside = normal(answer), normal(beside)
    if beside:
        return f"{prompt}\n{answer}\n{beside}", f"{prompt}\n{beside}\n{answer}"
    if mark:
        return f"{prompt}\n{answer}\n{mark}", f"{prompt}\n{answer}\n{'bad' if mark == 'good' else 'good'}"
    return f"{prompt}\n{answer}", ""


def own_text(example: Example, prompt: str, called: tuple[str, str], beside: tuple[str, str], text: str) -> str:
    """Return the text by which a row is nearly like another: `text`, as it is compared, but for system turns and tools, which many share.

    called: prompt and answer with tools and calls; beside: the worse answer and the mark.
    """
    own = own_prompt(example, prompt)
    return text if own == called[0] else compared_texts(normal(own), called[1], *beside)[0]


def normal(text: str) -> str:
    """Return the text as it is compared: in lower case, with single spaces."""
    return " ".join(text.lower().split())


def key_of(text: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True)


def hashes(texts: Sequence[str]) -> Keys:
    """Return `key_of` of many texts, int64 [texts]; 0 for an empty one."""
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() if text else bytes(8) for text in texts]
    return np.frombuffer(b"".join(digests), "<i8")


def signatures(texts: Sequence[str]) -> tuple[Signatures, Mask]:
    """Return the signatures, uint8 [texts, BINS], and which texts are long enough to be compared."""
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    sizes = np.array([len(item) for item in data], np.int64)
    long_enough = sizes >= _FEWEST_RUNS + _RUN - 1
    if not long_enough.any():
        return np.zeros((len(texts), BINS), np.uint8), long_enough
    flat, ends = b"".join(data) + bytes(8), np.cumsum(sizes)
    least = np.full((len(data), BINS), np.uint32(_NONE))
    first = 0
    while first < len(data):
        begin = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, begin + _AT_ONCE, "right")))
        _least_hashes(flat, begin, sizes[first:last], least[first:last].reshape(-1))
        first = last
    return _filled(least).astype(np.uint8), long_enough


def _least_hashes(flat: bytes, begin: int, sizes: npt.NDArray[np.int64], least: npt.NDArray[np.uint32]) -> None:
    """Put into each bin of each text the least hash of its runs; the texts stand in `flat` from `begin` on. `least`: [texts * BINS]."""
    ends = np.cumsum(sizes)
    if not ends[-1]:
        return
    hashes = np.ndarray(int(ends[-1]), "<u8", flat, begin, (1,)) & np.uint64((1 << 8 * _RUN) - 1)
    hashes *= np.uint64(0x9E3779B97F4A7C15)
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0xD6E8FEB86659FD93)
    bins = (hashes >> np.uint64(58)).astype(np.int64)
    bins += np.repeat(np.arange(len(sizes)) * BINS, sizes)
    low = hashes.astype(np.uint32)
    for back in range(1, _RUN):  # these runs reach into the next text
        low[np.maximum(ends - back, 0)] = _NONE
    np.minimum.at(least, bins, low)


def _filled(least: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Fill each empty bin with the value of the next full one to the right, changed by the distance."""
    places = np.arange(2 * BINS, dtype=np.int16)
    full = np.where(np.tile(least != _NONE, 2), places, np.int16(2 * BINS - 1))
    nearest = np.minimum.accumulate(full[:, ::-1], axis=1)[:, ::-1][:, :BINS]
    borrowed = np.take_along_axis(least, nearest % BINS, axis=1)
    return borrowed + ((nearest - places[:BINS]) * 37).astype(np.uint32)


def alike_pairs(rows: Signatures) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find pairs of rows that are nearly alike: first and second of each, int64 [pairs]. Each row is compared with the few before it that
    agree in a band; whole groups hang together through their neighbours."""
    found = []
    for band in range(_BANDS):
        keys = _band(rows, band)
        order = np.argsort(keys, kind="stable")
        for back in range(1, min(_NEIGHBOURS, len(rows) - 1) + 1):
            one, two = order[:-back], order[back:]
            same = keys[one] == keys[two]
            one, two = one[same], two[same]
            alike = (rows[one] == rows[two]).sum(axis=1) >= _ALIKE
            found.append((one[alike], two[alike]))
    nothing = np.zeros(0, np.int64)
    return np.concatenate([nothing, *(one for one, _ in found)]), np.concatenate([nothing, *(two for _, two in found)])


class Near:
    """Texts like earlier ones; the newest two million are remembered. Numbers of rows are kept modulo 2^32, and 0 is none."""

    def __init__(self, most: int = _MOST_KEPT) -> None:
        self._most = most
        self._size = 1 << 10  # rows that are remembered for now; doubles
        self._kept = np.zeros((most, BINS), np.uint8)  # takes memory as it is filled
        self._places = np.zeros(most, np.int64)
        self._newest = [np.zeros(self._size, np.uint32) for _ in range(_BANDS)]  # by band and hash: the newest row with that hash
        self._count = 0

    def add(self, fresh: Signatures) -> Mask:
        """Add signatures in order; return which of them are like an earlier one."""
        return self.add_at(fresh, np.zeros(len(fresh), np.int64)) >= 0

    def add_at(self, fresh: Signatures, where: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Add rows with their places, from 0 on; return of each the place of an earlier one that is like it, -1 without one."""
        self._make_room(len(fresh))
        numbers = np.arange(self._count + 1, self._count + 1 + len(fresh))
        self._kept[(numbers - 1) % self._size] = fresh
        self._places[(numbers - 1) % self._size] = where
        self._count += len(fresh)
        found = np.full(len(fresh), -1, np.int64)
        for band in range(_BANDS):
            earlier = self._candidates(band, fresh, numbers.astype(np.uint32))
            age = np.uint32(self._count & 0xFFFFFFFF) - earlier
            asked = np.flatnonzero((earlier != 0) & (age < self._size - 1))
            places = (self._count - 1 - age[asked].astype(np.int64)) % self._size
            alike = (self._kept[places] == fresh[asked]).sum(axis=1) >= _ALIKE
            found[asked[alike]] = self._places[places[alike]]
        return found

    def _candidates(self, band: int, fresh: Signatures, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Return for each row the newest earlier one that agrees in this band, 0 without; and note the rows themselves."""
        table = self._newest[band]
        slots = _slots(fresh, band, len(table))
        earlier: npt.NDArray[np.uint32] = table[slots]
        order = np.argsort(slots, kind="stable")
        follows = np.flatnonzero(slots[order][1:] == slots[order][:-1]) + 1
        earlier[order[follows]] = numbers[order[follows - 1]]
        table[slots] = numbers  # of equal slots the last one stays
        return earlier

    def _make_room(self, more: int) -> None:
        """Double the capacity as long as the limit allows, and insert the kept rows again."""
        while self._count + more > self._size and self._size < self._most:
            self._size *= 2
            for band in range(_BANDS):
                self._newest[band] = np.zeros(0, np.uint32)  # gone before the next is there
                self._newest[band] = np.zeros(self._size, np.uint32)
                for begin in range(0, self._count, _REHASHED):
                    rows = self._kept[begin : min(begin + _REHASHED, self._count)]
                    self._newest[band][_slots(rows, band, self._size)] = np.arange(begin + 1, begin + 1 + len(rows))


def _band(rows: Signatures, band: int) -> npt.NDArray[np.uint64]:
    """Pack the bins of one band into one number, uint64 [rows]."""
    part = np.zeros((len(rows), 8), np.uint8)
    part[:, :_ROWS] = rows[:, band * _ROWS : (band + 1) * _ROWS]
    numbers: npt.NDArray[np.uint64] = part.view("<u8")[:, 0]
    return numbers


def _slots(rows: Signatures, band: int, size: int) -> npt.NDArray[np.int64]:
    hashes: npt.NDArray[np.uint64] = _band(rows, band) * np.uint64(0x9E3779B97F4A7C15)
    slots: npt.NDArray[np.int64] = (hashes >> np.uint64(64 - size.bit_length() + 1)).astype(np.int64)
    return slots
