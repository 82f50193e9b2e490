"""In which scripts texts are written. Counts letters by the blocks of Unicode; knows no language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

_SHARE = 0.2  # of a text's letters, for a script to count as one it is written in
_BLOCKS = (  # first character of a stretch, script; until the next one begins
    (0x0041, "Latin"),
    (0x005B, ""),
    (0x0061, "Latin"),
    (0x007B, ""),
    (0x00C0, "Latin"),
    (0x0250, ""),
    (0x0370, "Greek"),
    (0x0400, "Cyrillic"),
    (0x0530, "Armenian"),
    (0x0590, "Hebrew"),
    (0x0600, "Arabic"),
    (0x0700, ""),
    (0x0900, "Devanagari"),
    (0x0980, "Bengali"),
    (0x0A00, "other"),  # of South Asia
    (0x0B80, "Tamil"),
    (0x0C00, "other"),
    (0x0E00, "Thai"),
    (0x0E80, "other"),
    (0x10A0, "Georgian"),
    (0x1100, "Hangul"),
    (0x1200, "other"),
    (0x1E00, "Latin"),
    (0x1F00, "Greek"),
    (0x2000, ""),
    (0x3040, "Kana"),
    (0x3100, ""),
    (0x3400, "Han"),
    (0xA000, "other"),
    (0xAC00, "Hangul"),
    (0xD7B0, ""),
    (0xF900, "Han"),
    (0xFB00, ""),
    (0x20000, "Han"),
    (0x32000, ""),
)
_STARTS = np.array([start for start, _ in _BLOCKS], np.uint32)
_NAMES = sorted({name for _, name in _BLOCKS if name})
_NAME_AT = np.array([len(_NAMES), *(_NAMES.index(name) if name else len(_NAMES) for _, name in _BLOCKS)], np.int64)


def scripts_of(others: Sequence[str], count: int) -> Counter[str]:
    """Count of `count` texts how many are in each script, at least in part; `others`: those that are not ASCII, the rest is Latin."""
    found = Counter(Latin=count - len(others))
    letters = np.frombuffer("".join(others).encode("utf-32-le", "surrogatepass"), "<u4")
    kinds = _NAME_AT[np.searchsorted(_STARTS, letters, "right")]
    row = np.repeat(np.arange(len(others)), [len(text) for text in others])
    width = len(_NAMES) + 1
    counts = np.bincount(row * width + kinds, minlength=len(others) * width).reshape(len(others), width)[:, :-1]
    written = (counts > 0) & (counts >= _SHARE * counts.sum(axis=1, keepdims=True))
    found.update(dict(zip(_NAMES, written.sum(axis=0).tolist(), strict=True)))
    return +found
