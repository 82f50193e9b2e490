"""What comes out of a source of real use: a row with what its people said of it, or why there is none. Nouns only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.base.files import Json


class Record(NamedTuple):
    """One row as it was found. `place`: where it stood; `row`: its fields, in a layout data/judge/layouts.py knows.

    `consent` is None where nobody was asked; `rating` is what a human said of it, as it stood; `raw` the text it came from.
    """

    place: str
    row: Json
    raw: str
    category: str
    consent: bool | None = None
    rating: Any = None


class Unusable(NamedTuple):
    """Something that stood where a row was expected, and why it is none."""

    place: str
    raw: str
    reason: str
    detail: str


class WriteBatch(NamedTuple):
    """Records that are written together; `written` is called once they are on the disk."""

    records: list[Record | Unusable]
    written: Callable[[], None] | None = None
