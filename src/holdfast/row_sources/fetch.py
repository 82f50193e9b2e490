"""Make files of names of rows that are elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

from holdfast.row_sources import address, hub
from holdfast.row_sources.names import hub_rows


def fetch_rows(name: str, held_out: bool = False, tell: Callable[[str], None] | None = None) -> list[str]:
    """The files of a data set of the hub, or of an address, as paths here. held_out: of a data set its rows that judge. Raises Stop."""
    rows = hub_rows(name)
    say = tell or to_stderr
    return hub.fetch(rows, held_out, say) if rows else address.fetch(name, say)


@cache
def to_stderr(text: str) -> None:
    """Each text once in a process: a command may look at its files twice."""
    print(f"holdfast: {text}", file=sys.stderr)
