"""Put a diagnosis into the form others read: explanation and remedies from the cards that spoke. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.base.files import Json
from holdfast.book.kinds.failure import Failure
from holdfast.run.types import Diagnosis

REMEDIES = 6
GUESSED = 0.5  # at most this sure is who goes by the words alone
_GUESSED = "No card of the book knows this; its words are most like those of {0}. What there is to that: holdfast explain {0}"
_UNKNOWN = "No card of the book fits well enough to be believed. The lines above are where a person would look first."


def answer(found: Diagnosis, cards: Mapping[str, Failure]) -> Json:
    """Return the diagnosis as JSON."""
    speaking = [cards[name] for name in found.cards]
    known = sorted((card for card in cards.values() if card.cause == found.cause), key=lambda card: -card.sure)
    guessed = not speaking and found.confidence <= GUESSED
    chosen = [] if guessed else speaking or known
    remedies = {remedy.id: remedy for card in chosen for remedy in card.remedies}
    return {
        "cause": found.cause,
        "confidence": found.confidence,
        "also": [{"cause": cause, "confidence": confidence} for cause, confidence in found.also],
        "clues": [{"line": clue.line, "text": clue.text} for clue in found.clues],
        "explanation": found.explanation or _explanation(found, chosen, bool(known and guessed)),
        "remedies": [
            {**remedy.model_dump(), "source": remedy.source or chosen[0].source[0]} for remedy in list(remedies.values())[:REMEDIES]
        ],
        "cards": [card.id for card in speaking],
    }


def _explanation(found: Diagnosis, chosen: list[Failure], guessed: bool) -> str:
    if chosen:
        return f"{chosen[0].title}. {chosen[0].why}"
    return _GUESSED.format(found.cause) if guessed else _UNKNOWN
