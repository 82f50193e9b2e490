"""A bar for work that counts up to a known number, on a terminal; nothing without one. Knows nothing of the work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[int, str], None]


@contextlib.contextmanager
def counting(what: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show a bar on standard error while the block runs; call what it yields with the number of new ones and a few words beside them."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[beside]}", markup=False))
    times = (TimeElapsedColumn(), TextColumn("ETA"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, completed=done, beside="")
        yield lambda new, beside: progress.update(task, advance=new, beside=beside)
