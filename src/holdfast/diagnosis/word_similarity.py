"""Guess the cause of a log on which no card fires, by the words it shares with the book. Pure.

A card fires on a mechanism that somebody wrote down. Logs of the same cause share words with it long before they share a line: names of
libraries, of functions, of things. Rare words count most; a guess is worth little and says so.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

from holdfast.book.kinds.failure import Failure

_BOILERPLATE = re.compile(  # of tracebacks
    r"Traceback \(most recent call last\):?|File \"|, line \d+(?:, in)?|^[^\w\n]*\[?(?:rank|default)\d+\]?:|https?://\S+"
    r"|During handling of the above exception, another exception occurred|The above exception was the direct cause of the following"
    r"|\b(?:site|dist)-packages\b|/(?:usr|path|home|opt|root|env)\b|\bpython[\d.]*\b"
    r"|\bKeyboardInterrupt\b",  # somebody ended it; why is not in the word
    re.M,
)
_SYNTAX = re.compile(r"\(\?[a-zA-Z]*[:=!<)]|\\[a-zA-Z]|\{\d*,?\d*\}")  # of a pattern: no words
_WORD = re.compile(r"[A-Za-z_]{3,}")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of fooBar_baz
OFTEN = 3  # a word that every card of a cause has counts that much more than one that one card has
LONG_CHAPTERS = 0.25  # by which power of its number of texts a cause's voice is lowered
ENOUGH, CLEAR = 8.0, 1.6  # rare words shared, at least; and how far the best stands above the second best
CLEARLY, HARDLY = 0.5, 0.38  # how often such a guess was right (benchmarks/results/diagnose.md)


def words_of(text: str) -> set[str]:
    """Split a text into its words in lower case, compound ones also in parts."""
    return set().union(*map(_forms, set(_WORD.findall(text))))


@lru_cache(1 << 13)
def _forms(word: str) -> frozenset[str]:
    """Return a word and its parts, cached: the cards' texts repeat a few thousand words."""
    return frozenset(form.lower() for form in (word, *_PART.findall(word)) if len(form) > 2)


def guess(text: str, cards: Iterable[Failure]) -> list[tuple[str, float]]:
    """Return the likeliest causes with how often such a guess is right, the best first; empty where too little is shared."""
    known: dict[str, Counter[str]] = defaultdict(Counter)
    texts = Counter[str]()
    for card in cards:
        if card.cause != "healthy":
            for words in _texts(card):
                known[str(card.cause)].update(words)
                texts[str(card.cause)] += 1
    shared_by = Counter(word for words in known.values() for word in words)
    mine = words_of(_BOILERPLATE.sub(" ", text))
    scores = {
        cause: sum(math.log((len(known) + 1) / shared_by[word]) ** 2 * min(OFTEN, math.sqrt(words[word])) for word in mine if word in words)
        / texts[cause] ** LONG_CHAPTERS
        for cause, words in known.items()
    }
    ranked = sorted(scores, key=lambda cause: -scores[cause])[:3]
    if len(ranked) < 2 or scores[ranked[0]] < ENOUGH:
        return []
    best = CLEARLY if scores[ranked[0]] >= CLEAR * scores[ranked[1]] else HARDLY
    return [(cause, round(best * (0.5 if number else 1) * scores[cause] / scores[ranked[0]], 3)) for number, cause in enumerate(ranked)]


def _texts(card: Failure) -> Iterable[set[str]]:
    """Return the words of each piece of a card's text."""
    hits = (str(hit.get("log", "")) if isinstance(hit, dict) else str(hit) for hit in card.hits)
    patterns = (_SYNTAX.sub(" ", pattern.pattern) for pattern in card.patterns)
    return (words_of(text) for text in (*(_BOILERPLATE.sub(" ", hit) for hit in hits), *patterns, card.title, card.why))
