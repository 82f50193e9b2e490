"""Graphics cards by name: what a plan has to know of one that is not here. The table is tables/cards.yaml."""

from __future__ import annotations

import difflib
import re

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import Json
from holdfast.book.knowledge import table

_MEMORY = re.compile(r"[\s-]*(\d+)\s*(?:gib|gb|g)$", re.IGNORECASE)
_MAKERS = re.compile(r"\b(nvidia|amd|geforce|radeon|instinct|tesla|quadro|graphics)\b", re.IGNORECASE)


def named_card(text: str, otherwise: str = "for any other give its memory: --memory 32GiB") -> Json:
    """Return a card as a machine file has it, by "RTX 4090", "a100-80gb", "NVIDIA H100". Raises Stop(2) if unknown, or of two sizes.

    otherwise: what its caller takes for a card that no table has.
    """
    size = None if _plain(text) in {_plain(card["name"]) for card in _cards()} else _MEMORY.search(text)  # A10G is no A of 10 GB
    name = text[: size.start()] if size else text
    cards = [card for card in _cards() if _plain(card["name"]) == _plain(name)]
    if not cards:
        known = sorted({card["name"] for card in _cards()})
        family = [_plain(one) for one in known if _of_family(_plain(name), _plain(one))]
        same = [one for one in family if re.findall(r"\d", one) == re.findall(r"\d", _plain(name))]
        near = difflib.get_close_matches(_plain(name), same or family, 1, 0.5)
        meant = next((one for one in known if near and _plain(one) == near[0]), None)
        hint = f"did you mean {meant}? " if meant else ""
        raise Stop(USAGE, f"no card is known as {text!r}", hint + otherwise)
    sizes = sorted({card["memory_gib"] for card in cards})
    asked = [card for card in cards if size is None or card["memory_gib"] == int(size[1])]
    if len(asked) != 1:
        sold = " and ".join(f"{one} GB" for one in sizes)
        wrong = "" if size is None else f", not with {size[1]} GB"
        raise Stop(USAGE, f"{cards[0]['name']} is sold with {sold}{wrong}", f"write --card '{cards[0]['name']} {sizes[-1]}GB'")
    (card,) = asked
    memory = card["memory_gib"] * 10**9 if card.get("decimal") else card["memory_gib"] << 30
    return {"vendor": card["vendor"], "arch": card["arch"], "name": card["name"], "memory_bytes": memory, "integrated": False}


def _of_family(name: str, known: str) -> bool:
    """Return whether `name` may be a slip for a card's: the same digits and the same letters or none, or its letters and first digit."""
    letters, others = (sorted(re.sub(r"\d", "", one)) for one in (name, known))
    if re.findall(r"\d", name) == re.findall(r"\d", known) and letters in ([], others):
        return True
    first, other = re.match(r"\D*\d", name), re.match(r"\D*\d", known)
    return first is not None and other is not None and first[0] == other[0]


def _cards() -> list[Json]:
    cards: list[Json] = table("cards")["cards"]
    return cards


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", _MAKERS.sub("", name).lower())
