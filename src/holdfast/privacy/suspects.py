"""Words of a text that look drawn by chance, so that they may be secrets of a form nobody knows. Pure; it takes nothing out."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

_WORD = re.compile(r"(?<![\w/+.=@%-])[A-Za-z0-9_+/=-]{20,200}(?![\w/+.@%-])")
_HEX = re.compile(r"[0-9a-f]{32,128}|[0-9A-F]{32,128}")
_KNOWN_BEFORE = re.compile(
    r"(?i)(?<![a-z])(?:sha\d*|hash|commit|digest|checksum|revision|version|etag|crc|md5|uuid|boot|build|run|session|sampled|id)"
    r"[\w\"' :=.-]{0,24}$"
)
_SORTS = (str.islower, str.isupper, str.isdigit)
_LEAST_BITS, _LEAST_CHANGES = 3.6, 0.22  # a character; between two sorts of them


class Suspect(NamedTuple):
    """A word that may be a secret, and where it stands."""

    word: str
    file: str
    line: int

    @property
    def masked(self) -> str:
        """Enough of it to find it by, too little to use it."""
        return f"{self.word[:6]}...{self.word[-3:]} ({len(self.word)} characters)"


def suspects(texts: Iterable[tuple[str, str]], most: int = 10) -> list[Suspect]:
    """List the words of texts, by file name, most likely to be secrets, each once, the likeliest first."""
    found: dict[str, tuple[float, Suspect]] = {}
    for file, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            for word, weight in _odd(line):
                found.setdefault(word, (weight, Suspect(word, file, number)))
    ranked = sorted(found.values(), key=lambda one: (-one[0], one[1]))
    return [suspect for _, suspect in ranked[:most]]


def _odd(line: str) -> Iterator[tuple[str, float]]:
    for match in _WORD.finditer(line):
        word = match[0].rstrip("=")
        if _KNOWN_BEFORE.search(line[max(0, match.start() - 40) : match.start()]):
            continue
        if _HEX.fullmatch(word):
            yield match[0], 3.0
        elif any(map(str.isdigit, word)) and any(map(str.isalpha, word)) and "/" not in word[:1]:
            bits, changes = _bits(word), _changes(word)
            if bits >= _LEAST_BITS and changes >= _LEAST_CHANGES:
                yield match[0], bits * changes * 2


def _bits(word: str) -> float:
    """Compute Shannon's entropy of a word's characters, in bits."""
    return -sum(count / len(word) * math.log2(count / len(word)) for count in Counter(word).values())


def _changes(word: str) -> float:
    """Return how often, per character, the sort of character changes: seldom in names, all the time where they are drawn."""
    sorts = [next((number for number, is_one in enumerate(_SORTS) if is_one(letter)), 3) for letter in word]
    return sum(one != other and 3 not in (one, other) for one, other in pairwise(sorts)) / len(word)
