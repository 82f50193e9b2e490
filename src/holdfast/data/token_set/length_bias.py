"""Whether pairs prefer the longer answer: a model then learns to write more, whatever else they say. Decides nothing."""

from __future__ import annotations

import numpy as np

from holdfast.base.files import Json
from holdfast.data.token_set.token_set import TokenSet, sequences

_ROWS = 20_000  # of a set, the first ones
_FEWEST = 20
_ONE_SIDED = 0.7  # of the pairs


def length_bias(tokens: TokenSet) -> Json | None:
    """Return {pairs, longer: share whose better answer has more tokens, times: the median ratio of lengths}; None where it is balanced.

    Pairs of the same length count as half.
    """
    counts = []
    for number in range(min(len(tokens), _ROWS)):
        found = sequences(*tokens.row(number))
        if len(found) == 2:
            counts.append([int(learned.sum()) for (_, learned), _ in found])
    if len(counts) < _FEWEST:
        return None
    better, worse = np.array(counts).T
    longer = float(((better > worse) + 0.5 * (better == worse)).mean())
    if max(longer, 1 - longer) < _ONE_SIDED:
        return None
    return {"pairs": len(counts), "longer": round(longer, 3), "times": round(float(np.median(better / np.maximum(worse, 1))), 2)}
