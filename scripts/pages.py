"""Writing generated pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def write_pages(folder: Path, texts: Mapping[str, str], owned: str = "") -> None:
    """Write pages by their path below `folder`. owned: pattern of those that are removed where no text is theirs."""
    for old in folder.glob(owned) if owned else ():
        if str(old.relative_to(folder)) not in texts:
            old.unlink()
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
