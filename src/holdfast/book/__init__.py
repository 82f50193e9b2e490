"""The book: cards by kind, one file each, a folder a kind (a package that names the KIND of its cards)."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.base.errors import USAGE, Stop
from holdfast.book.kinds.catalog import Card, read_cards

_HERE = Path(__file__).parent


def shelves() -> list[str]:
    """List the kinds of cards, as folder names."""
    return sorted(file.parent.name for file in _HERE.glob("*/__init__.py") if file.parent.name != "kinds")


def cards_of(shelf: str, own: Path | None = None) -> dict[str, Any]:
    """Return all cards of one shelf by id, read once. Raises Stop(2).

    own: a user's book, laid out alike (own/failures/*.yaml); its cards replace ours of the same id.
    """
    kind, cards = _ours(shelf)
    if own is None:
        return dict(cards)
    if not own.is_dir():
        raise Stop(USAGE, f"{own} is not a folder", "--book takes a folder with failures/*.yaml in it")
    return cards | read_cards(own / shelf, kind)


@cache
def _ours(shelf: str) -> tuple[type[Card], dict[str, Any]]:
    package = f"holdfast.book.{shelf}"
    kind: type[Card] = importlib.import_module(package).KIND
    return kind, read_cards(_HERE / shelf, kind, package)
