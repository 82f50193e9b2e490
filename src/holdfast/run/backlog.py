"""What a full disk does not take: rows wait in memory until there is room, the end of a run has room that was reserved for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.base.files import Json, append_line, is_full

T = TypeVar("T")
RESERVED, RESERVED_BYTES = ".end.reserved", 1 << 18


class Backlog:
    """Rows of journals in `folder` that its disk has not taken, in their order. `tell`: says when that begins and ends."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder, self.tell = folder, tell
        self.rows: list[tuple[Path, Json]] = []

    def append(self, path: Path, row: Json) -> None:
        """Append a row as `append_line` does; on a full disk keep it. Raises OSError for any other reason."""
        waiting = len(self.rows)
        self.rows.append((path, row))
        self.flush()
        if self.rows and not waiting:
            self.tell(f"the disk of {self.folder} is full: what is to be noted is kept in memory until there is room; nothing is stopped")
        elif waiting and not self.rows:
            self.tell(f"the disk of {self.folder} has room again: {waiting} rows that had waited are written")

    def flush(self) -> None:
        """Write what waits, as far as there is room."""
        try:
            while self.rows:
                append_line(*self.rows[0])
                del self.rows[0]
        except OSError as error:
            if not is_full(error):
                raise

    def of(self, path: Path) -> list[Json]:
        """The rows of one journal that wait."""
        return [row for name, row in self.rows if name == path]

    def reserve(self) -> None:
        """Take the room that the run's end will need; without it where the disk has none."""
        reserved = self.folder / RESERVED
        with contextlib.suppress(OSError):
            if not reserved.exists() or reserved.stat().st_size < RESERVED_BYTES:  # else it is left from a supervisor that was killed
                reserved.write_bytes(b" " * RESERVED_BYTES)

    def release(self) -> None:
        """Give the reserved room back."""
        with contextlib.suppress(OSError):
            (self.folder / RESERVED).unlink(missing_ok=True)

    def settle(self, write: Callable[[], T]) -> T:
        """Write something of the run's end, on a full disk into the room reserved for it. Raises OSError where that is not enough."""
        try:
            return write()
        except OSError as error:
            if not is_full(error):
                raise
        self.release()
        return write()
