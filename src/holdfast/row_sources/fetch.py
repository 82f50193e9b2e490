"""Make files of names of rows that are elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from holdfast.row_sources import address, hub
from holdfast.row_sources.names import hub_rows


def fetch_rows(name: str, held_out: bool = False, tell: Callable[[str], None] | None = None) -> list[str]:
    """Fetch a hub data set's files, or an address's; return local paths. held_out: the data set's rows that judge. Raises Stop."""
    rows = hub_rows(name)
    say = tell or to_stderr
    return hub.fetch(rows, held_out, say) if rows else address.fetch(name, say)


@cache
def to_stderr(text: str) -> None:
    """Print each text once in a process: a command may look at its files twice."""
    print(f"holdfast: {text}", file=sys.stderr)
