"""Make files of names of rows that are elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from holdfast.row_sources import address, hub
from holdfast.row_sources.names import hub_rows
from holdfast.row_sources.splits import Use


def fetch_rows(name: str, use: Use = "learned", tell: Callable[[str], None] | None = None) -> list[str]:
    """Fetch a hub data set's files, or an address's; return local paths. Where there are splits, those of use alone. Raises Stop."""
    rows = hub_rows(name)
    say = tell or to_stderr
    return hub.fetch(rows, use, say) if rows else address.fetch(name, use, say)


@cache
def to_stderr(text: str) -> None:
    """Print each text once in a process: a command may look at its files twice."""
    print(f"holdfast: {text}", file=sys.stderr)
