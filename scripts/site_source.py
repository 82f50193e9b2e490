"""Lay out what the site is made of below build/site-source, every page where it stands here, so that relative links hold: `make docs` does.

What a page links to beside pages (an example, a licence, a test) is copied as it is. Pages are listed in the menu by their titles.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "site-source"
LINK = re.compile(r"\]\(([^)#\s]+)")


def sources() -> list[Path]:
    """Every page, and every file that one links to."""
    pages = [page for pattern in ("*.md", "docs/**/*.md", "benchmarks/**/*.md") for page in sorted(ROOT.glob(pattern))]
    linked = [
        (page.parent / target).resolve()
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target
    ]
    return list(dict.fromkeys([*pages, *(file for file in linked if file.is_file())]))


def menu(entry: Any) -> Any:
    """The menu with folders replaced by their pages, README first."""
    if isinstance(entry, list):
        return [menu(one) for one in entry]
    if isinstance(entry, dict):
        return {name: menu(inner) for name, inner in entry.items()}
    if not entry.endswith("/"):
        return entry
    return sorted(
        (str(page.relative_to(ROOT)) for page in (ROOT / entry).glob("*.md")), key=lambda page: (not page.endswith("README.md"), page)
    )


def main() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    for file in sources():
        place = SITE / file.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    head, _, nav = text.partition("\nnav:\n")
    (ROOT / "build" / "mkdocs.yml").write_text(
        head.replace("build/", "") + "\n" + yaml.safe_dump({"nav": menu(yaml.safe_load(nav))}, sort_keys=False), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
