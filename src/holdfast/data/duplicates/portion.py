"""Divide rows into parts, and draw samples of them: by share or count, evenly over categories, what is alike on one side. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import USAGE, Stop
from holdfast.data.duplicates.keys import RowKeys
from holdfast.data.duplicates.linked import Numbers, joined, links_of_equal
from holdfast.data.duplicates.similar import alike_pairs
from holdfast.run.sampling.shuffle import Stream, permutation

_AMOUNT = re.compile(r"\d+|0?\.\d+|1\.0*|rest")


@dataclass(frozen=True)
class Amount:
    """How much of the rows: a count, a share, or (both None) what the others leave."""

    count: int | None = None
    share: float | None = None

    def rows(self, total: int) -> float:
        return self.count if self.count is not None else (self.share or 0.0) * total


def amount_of(text: str) -> Amount:
    """Parse an amount: 500 (rows), 0.1 (share) or rest. Raises Stop(2)."""
    if not _AMOUNT.fullmatch(text):
        raise Stop(USAGE, f"{text!r} is no amount of rows", "write a count (500), a share (0.1) or rest")
    if text == "rest":
        return Amount()
    return Amount(share=float(text)) if "." in text else Amount(count=int(text))


def groups(keys: RowKeys) -> Numbers:
    """Return for each row the first row of its group: the same texts, the same prompt, or nearly the same texts. int64 [rows]."""
    near = np.flatnonzero(keys.comparable)
    one, two = alike_pairs(keys.signatures[near])
    same = links_of_equal(keys.pairs, np.arange(len(keys)))
    return joined(len(keys), [(near[one], near[two]), same, links_of_equal(keys.prompts, np.flatnonzero(keys.prompts))])


def divide(keys: RowKeys, amounts: list[Amount], seed: int, together: Numbers, equal: bool = False) -> npt.NDArray[np.int8]:
    """Draw the part each row goes to (-1: none) by seed, int8 [rows]. Groups stay whole; each category is divided for itself.

    `equal`: of each category as many, as far as there are, instead of in proportion.
    """
    part = np.full(len(keys), -1, np.int8)
    size = np.bincount(together, minlength=len(keys)).astype(np.int64)
    heads = np.flatnonzero(size)
    heads = heads[permutation(len(heads), seed, Stream.PARTS)]
    of_category = keys.category[heads]
    goals = _goals(amounts, np.bincount(of_category, weights=size[heads], minlength=len(keys.categories)).astype(np.int64), equal)
    for number in range(len(keys.categories)):
        _fill(part, heads[of_category == number], size, goals[number].tolist())
    return part[together]


def _goals(amounts: list[Amount], sizes: npt.NDArray[np.int64], equal: bool) -> npt.NDArray[np.int64]:
    """Return the rows of each category for each part, int64 [categories, parts + 1]; the last column is left over. Sums are as asked."""
    total = int(sizes.sum())
    wanted = [round(amount.rows(total)) for amount in amounts]
    rest = next((number for number, amount in enumerate(amounts) if amount == Amount()), len(amounts))
    found = np.zeros((len(sizes), len(amounts) + 1), np.int64)
    left = sizes.copy()
    for number, count in enumerate(wanted):
        if number != rest:
            found[:, number] = (_equally if equal else _in_proportion)(min(count, int(left.sum())), left)
            left -= found[:, number]
    found[:, rest] += left
    return found


def _in_proportion(count: int, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Divide `count` over `sizes` in proportion, the largest remainders rounded up."""
    exact = sizes * (count / max(1, int(sizes.sum())))
    found: npt.NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = count - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1
    return found


def _equally(count: int, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Divide `count` over `sizes` in equal numbers, but never more of one than there are."""
    found = np.zeros_like(sizes)
    while count:
        open_ones = np.flatnonzero(found < sizes)[:count]
        each = max(1, count // len(open_ones))
        more = np.minimum(each, sizes[open_ones] - found[open_ones])
        found[open_ones] += more
        count -= int(more.sum())
    return found


def _fill(part: npt.NDArray[np.int8], heads: Numbers, size: Numbers, goals: list[int]) -> None:
    """Give each group of one category to the part that lacks most of its goal; the last goal is for nobody (-1)."""
    left = [*goals]
    for head in heads[np.argsort(-size[heads], kind="stable")].tolist():  # large groups while there is room for them
        rows = int(size[head])
        roomy = [at for at, room in enumerate(left) if room >= rows]
        number = max(roomy, key=lambda at: left[at] / goals[at]) if roomy else max(range(len(left)), key=left.__getitem__)
        part[head] = number if number < len(goals) - 1 else -1
        left[number] -= rows


def by_hash(keys: RowKeys, amounts: list[Amount], seed: int, together: Numbers) -> npt.NDArray[np.int8]:
    """Divide by the hash of each group's first row: a row keeps its side when others are added. Shares only: raises Stop(2)."""
    shares = [amount.share for amount in amounts]
    if any(amount.count is not None for amount in amounts):
        raise Stop(USAGE, "--by-hash divides by shares, not by counts", "for example: --into train.jsonl=0.9 --into held-out.jsonl=rest")
    known = sum(share or 0.0 for share in shares)
    ends = np.cumsum([max(0.0, 1 - known) if share is None else share for share in shares])
    names = np.where(keys.prompts != 0, keys.prompts, keys.pairs)[together]
    mixed = names.view(np.uint64) ^ np.uint64((seed * 0x9E3779B97F4A7C15) % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    place = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    part = np.searchsorted(ends, place, "right")
    return np.where(part < len(amounts), part, -1).astype(np.int8)
