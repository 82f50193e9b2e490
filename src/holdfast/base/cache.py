"""Where holdfast keeps what it can make again: facts about torch, tokenised rows. Knows the place, not the contents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """Return HOLDFAST_CACHE, else holdfast in XDG_CACHE_HOME, else in ~/.cache; None for a user without a home. It need not exist."""
    if own := environment.get("HOLDFAST_CACHE"):
        return Path(own).expanduser().absolute()
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared) / "holdfast"
    try:
        return Path.home() / ".cache" / "holdfast"
    except RuntimeError:
        return None
