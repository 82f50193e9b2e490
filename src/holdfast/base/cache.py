"""Where holdfast keeps what it can make again: facts about torch, tokenised rows. Knows the place, not the contents."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.files import Json, read_json, write_json


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


def read_kept(file: Path | None) -> Json | None:
    """Return what a file of the cache holds; None where there is none, or it cannot be read: it is made anew."""
    with contextlib.suppress(OSError):
        return read_json(file) if file else None
    return None


def write_kept(file: Path | None, value: Json, durable: bool = True) -> None:
    """Keep what can be made again; nothing where there is no home, or a full one."""
    with contextlib.suppress(OSError):
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, value, durable)
