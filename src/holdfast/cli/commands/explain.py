"""`holdfast explain CARD`: what a card of the book says: mechanism, source, what it looks for, remedies. Without CARD: all of them."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import say
from holdfast.book import cards_of, shelves
from holdfast.book.kinds.catalog import Card
from holdfast.book.kinds.failure import Failure

_MEANT = {
    "memory": "CUDA out of memory",
    "oom": "out of memory",
    "nan": "loss is nan",
    "segfault": "Segmentation fault",
    "hang": "hang",
    "cuda oom": "CUDA out of memory",
}
_MOST = 3  # cards for words that are no name
EXAMPLE = "holdfast explain gpu-oom-allocator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("card", nargs="?", metavar="CARD", help="a card's name, or a cause; without it all cards are listed")
    parser.add_argument("--book", type=Path, metavar="DIR", help="your own cards: DIR/failures/*.yaml; they replace ours of the same name")
    parser.add_argument("--json", action="store_true", help="print the cards as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    cards = {name: card for shelf in shelves() for name, card in cards_of(shelf, arguments.book).items()}
    if arguments.card is None:
        chosen = list(cards.values())
        text = "\n".join(f"{card.chapter():26} {card.id:30} {card.title}" for card in sorted(chosen, key=lambda card: card.chapter()))
    else:
        chosen = _find(arguments.card, cards)
        text = "\n".join(card.page() for card in chosen)
    if not arguments.json:
        say(text)
    return DONE, {"cards": [card.as_json() for card in chosen]}


def _find(name: str, cards: dict[str, Card]) -> list[Card]:
    if (card := cards.get(name) or cards.get(name.replace("_", "-"))) is not None:  # as `data check` writes the reason of a row
        return [card]
    if chapter := [card for card in cards.values() if card.chapter() == name]:
        return chapter
    if found := _about(name, cards):
        return found
    near = difflib.get_close_matches(name, [*cards, *(card.chapter() for card in cards.values())], n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else "`holdfast explain` lists them all"
    raise Stop(USAGE, f"no card is called {name}", hint)


def _about(words: str, cards: dict[str, Card]) -> list[Card]:
    """Find cards for what is no name of one: an abbreviation, words of a title, or a line that a failure prints. At most three."""
    line = _MEANT.get(words.lower(), words)
    printed = [card for card in cards.values() if isinstance(card, Failure) and card.matches(line)]
    titled = [card for card in cards.values() if line.lower() in f"{card.id.replace('-', ' ')} {card.title}".lower()]
    found = {card.id: card for card in [*sorted(printed, key=lambda card: -card.sure), *titled]}
    return list(found.values())[:_MOST] if len(line) > 2 else []
