"""List the links of the book with the cards that name them: `python scripts/book_links.py [PART OF A LINK]`. It looks none of them up."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import holdfast.book

_LINK = re.compile(r"https?://[^\s\"'\]\)>,}{]+")


def links() -> dict[str, list[str]]:
    """Each link with the files of the book that name it, relative to its folder."""
    folder = Path(holdfast.book.__file__).parent
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted((*folder.rglob("*.yaml"), *folder.rglob("*.py"))):
        for link in _LINK.findall(file.read_text(encoding="utf-8")):
            found[link.rstrip(".")].add(str(file.relative_to(folder)))
    return {link: sorted(found[link]) for link in sorted(found)}


def main(wanted: str) -> None:
    for link, files in links().items():
        if wanted in link:
            print(link, *files, sep="\t")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
