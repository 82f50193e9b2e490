"""Random orders that follow from (seed, stream) alone and never change. Pure."""

from __future__ import annotations

from enum import IntEnum, unique

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@unique
class Stream(IntEnum):
    """The streams of random words of one seed. Below all of them: an epoch's number is its own stream."""

    HELD_OUT = 2**32  # which rows are held out
    MIXTURE_OFFSETS = 2**32 + 1  # where each stratum of a mixture begins
    FRACTION = 2**32 + 3  # which training rows of a table are used, where a share is
    EVALUATION = 2**32 + 2  # which held-out rows an evaluation on the way takes
    PARTS = 2**33  # into which parts `data split` and `data sample` divide rows
    STRATA = 2**62  # + stratum * 2**32 + pass


def permutation(size: int, seed: int, stream: int) -> Rows:
    """Draw a permutation from raw Philox words, whose stream numpy guarantees to stay the same in every version."""
    return np.argsort(_words(size, seed, stream), kind="stable").astype(np.int64)


def fractions(size: int, seed: int, stream: int) -> npt.NDArray[np.float64]:
    """Draw numbers from 0 to below 1 in steps of 2**-20, so that adding them to a row's number is exact."""
    return (_words(size, seed, stream) >> np.uint64(44)).astype(np.float64) / 2**20


def _words(size: int, seed: int, stream: int) -> npt.NDArray[np.uint64]:
    return np.asarray(np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(size), dtype=np.uint64)
