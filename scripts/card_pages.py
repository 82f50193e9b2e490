"""Write docs/book/ from the cards themselves: `python scripts/card_pages.py`. tests/book/test_cards.py says when that is due."""

from __future__ import annotations

from pathlib import Path

from pages import write_pages

from holdfast.book import cards_of, shelves
from holdfast.book.kinds.catalog import Card

FOLDER = Path(__file__).parent.parent / "docs" / "book"


def pages() -> dict[str, str]:
    """The text of each page by its path below docs/book/."""
    found: dict[str, str] = {}
    index = [
        "# The book",
        "",
        "What holdfast knows, one card each. These pages are written from the cards by `python scripts/card_pages.py`.",
        "",
    ]
    for shelf in shelves():
        chapters: dict[str, list[Card]] = {}
        for card in cards_of(shelf).values():
            chapters.setdefault(card.chapter(), []).append(card)
        index += [f"## {shelf}", ""]
        for chapter, cards in sorted(chapters.items()):
            name = f"{shelf}/{chapter}.md"
            found[name] = f"# {chapter}\n\n" + "\n".join(card.page() for card in cards).rstrip() + "\n"
            index.append(f"* [{chapter}]({name}): " + ", ".join(card.id for card in cards))
        index.append("")
    return found | {"README.md": "\n".join(index).rstrip() + "\n"}


if __name__ == "__main__":
    write_pages(FOLDER, pages(), owned="**/*.md")
