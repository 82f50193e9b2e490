"""`holdfast explain CARD`: what a card of the book says: mechanism, remedies, source. Without CARD: all of them."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

from holdfast.base.errors import DONE, USAGE, Stop
from holdfast.base.files import Json
from holdfast.base.inert import columns, say
from holdfast.book import cards_of, shelves
from holdfast.book.kinds.catalog import Card
from holdfast.book.kinds.failure import Failure

_MOST = 3  # cards for words that are no name
_HINT = "holdfast explain WORDS, for example: memory, nan, slow, hang, or a line of a log; a name or a cause of this list"
_FILLING = "a an and are at does for from has have in is it its my no not of on or the this to was what why with"
_EVERYDAY = {  # what people call it: its cards, the obvious one first
    "memory|out of memory|cuda out of memory|oom|cuda oom|vram": "gpu-oom-allocator gpu-oom-fragments host-oom-sigkill",
    "ram|killed|sigkill|exit code 137|137|-9": "host-oom-sigkill host-oom-kernel host-oom-allocator",
    "nan|inf|loss is nan|nan loss|loss nan": "nonfinite-detected nonfinite-after-healthy-steps nonfinite-single-steps",
    "slow|slower|too slow|speed": "slower hang-standing-bar",
    "hang|hangs|stuck|freeze|freezes|frozen|stands still|deadlock": "hang-waiting hang-standing-bar hang-stack-dump",
    "loss 0|loss is 0|loss is zero|zero loss": "no-signal-zero-from-start zero-loss no-signal-all-masked",
    "not learning|does not learn|loss does not fall|loss does not go down": "no-signal-nothing-moves still no-signal-all-masked",
    "diverges|loss explodes|loss goes up|loss rises|loss climbs": "divergence-climbing divergence-rising divergence",
    "overfit|overfitting": "held-out-worse",
    "spike|loss spike": "spike norm-spike",
    "crash|segfault|segmentation fault|sigsegv|core dumped": "crash-signal crash-on-first-kernel exit-crash",
    "disk|disk full|no space|no space left": "disk-full-enospc disk-full-words disk-space",
    "no gpu|gpu not found|cuda not available|cuda is not available": "torch-without-gpu device-none-visible torch-sees-no-gpu",
    "driver|old driver": "driver-too-old driver-not-loaded nvidia-driver",
    "nccl|rccl": "communication-nccl collective-watchdog communication-p2p",
    "timeout|timed out": "collective-watchdog launch-time-limit network-hub",
    "gated|login|401|403|hf token": "network-gated",
    "template|chat template": "template-missing template-roles",
    "shm|shared memory|bus error": "shm-bus-error shm-segment-refused shm-worker-exit",
    "gguf|ollama": "export-gguf-vocab export-gguf-tensors export-gguf-names",
    "json|jsonl": "data-json-broken data-schema",
    "checkpoint|resume": "checkpoint-torn checkpoint-state-mismatch checkpoint-not-there",
}
EVERYDAY = {word: cards.split() for words, cards in _EVERYDAY.items() for word in words.split("|")}
_NONE = "no card is called {0!r}; these have words of it (holdfast explain NAME):"
EXAMPLE = "holdfast explain gpu-oom-allocator"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "card",
        nargs="*",
        metavar="CARD",
        help="a card's name, a cause, everyday words (memory, nan, slow) or a line of a log; without it all cards are listed",
    )
    parser.add_argument("--book", type=Path, metavar="DIR", help="your own cards: DIR/failures/*.yaml; they replace ours of the same name")
    parser.add_argument("--json", action="store_true", help="print the cards as JSON")


def run(arguments: argparse.Namespace) -> tuple[int, Json]:
    cards = {name: card for shelf in shelves() for name, card in cards_of(shelf, arguments.book).items()}
    asked = " ".join(arguments.card)
    if not arguments.card:
        chosen = list(cards.values())
        listed = sorted(chosen, key=lambda card: (_group(card), card.id))
        text = "\n".join([*(f"{_group(card):26} {card.id:30} {card.title}" for card in listed), "", _HINT])
    else:
        chosen, meant = find_cards(asked, cards)
        rest = [f"  {card.id:30} {card.title}" for card in chosen[meant:]]
        card = chosen[0].told(filled=not columns(sys.stdout))
        before = [card, "", "or one of these (holdfast explain NAME):"] if meant else [_NONE.format(asked)]
        text = "\n".join([*(before if rest else before[:1]), *rest])
    if not arguments.json:
        say(text)
    return DONE, {"cards": [card.as_json() for card in chosen]}


def _group(card: Card) -> str:
    """Return the heading a card is listed under: the cause of a failure, else what kind of card it is."""
    return card.chapter() if isinstance(card, Failure) else type(card).__module__.rpartition(".")[2].replace("_", " ")


def find_cards(name: str, cards: dict[str, Card]) -> tuple[list[Card], bool]:
    """Find cards by name, cause, everyday word, a line that a failure prints, or words of their titles.

    Returns them, the likeliest first, and whether the first is what was asked for: not where only some of its words are the same.
    Raises Stop(2).
    """
    if (card := cards.get(name) or cards.get(name.replace("_", "-"))) is not None:  # as `data check` writes the reason of a row
        return [card], True
    words = " ".join(name.lower().split())
    if not words:
        raise Stop(
            USAGE, "no card is named: the name is empty", "`holdfast explain` lists all cards, `holdfast explain memory` those of a word"
        )
    usual = [cards[card] for card in EVERYDAY.get(words, ()) if card in cards]
    if chapter := [card for card in cards.values() if isinstance(card, Failure) and card.chapter() == name.replace("-", "_")]:
        return list({card.id: card for card in [*usual, *sorted(chapter, key=_obvious)]}.values()), True
    if found := usual or _printed(name, cards) or _spoken(words, cards):
        return found[:_MOST], True
    if found := _worded(words, cards):
        return found[: 2 * _MOST], False
    names = [*cards, *EVERYDAY, *(card.chapter() for card in cards.values())]
    spoken = {word for card in cards.values() for word in re.findall(r"[a-z]{5,}", f"{card.id} {card.title}".lower())}
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6) or difflib.get_close_matches(words, sorted(spoken), n=1, cutoff=0.8)
    hint = f"did you mean {near[0]}? `holdfast explain {near[0]}`" if near else "`holdfast explain` lists them all"
    raise Stop(USAGE, f"no card is called {name}, and none speaks of it", hint)


def _obvious(card: Card) -> tuple[bool, float]:
    """Sort by how plainly a card is the cause: what is a root before its echoes, the surest first."""
    return (card.role == "echo", -card.sure) if isinstance(card, Failure) else (True, 0.0)


def _printed(line: str, cards: dict[str, Card]) -> list[Card]:
    """Find the failures that print this line."""
    return sorted((card for card in cards.values() if isinstance(card, Failure) and card.matches(line)), key=_obvious)


def _spoken(words: str, cards: dict[str, Card]) -> list[Card]:
    """Find the cards of the longest everyday word that stands in the words."""
    there = [usual for usual in EVERYDAY if f" {usual} " in f" {words} "]
    return [cards[card] for card in EVERYDAY[max(there, key=len)] if card in cards] if there else []


def _worded(words: str, cards: dict[str, Card]) -> list[Card]:
    """Find the cards whose name and title, or else explanation, hold most of the words; none where less than half of them are held."""
    asked = [word for word in dict.fromkeys(re.findall(r"[a-z0-9]+", words)) if word not in _FILLING.split() and len(word) > 2]
    if not asked or "-" in words:
        return []

    def held(text: str) -> int:
        spoken = re.findall(r"[a-z0-9]+", text.lower())
        return sum(any(one.startswith(word) for one in spoken) for word in asked)

    scores = {card.id: 3 * held(f"{card.id} {card.title}") + held(card.why) for card in cards.values()}
    fit = [card for card in cards.values() if 2 * held(f"{card.id} {card.title} {card.why}") >= len(asked)]
    return sorted(fit, key=lambda card: (-scores[card.id], _obvious(card)))
