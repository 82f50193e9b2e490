"""A run folder that is renamed while its run goes on: found by what is open of it, its old name a link to it until the end.

All processes of the run know it by the old name. What one of them misses in the instant between is an end like others: it is restarted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

_LOOK_S = 0.05
T = TypeVar("T")


class Anchor:
    """Holds on to a folder whatever it is called. moves: how often it was found under another name."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self.folder, self.moves, self._tell = folder, 0, tell
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._links: list[Path] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Make the old name a link where the folder has another one."""
        with self._lock, contextlib.suppress(OSError):  # what cannot be linked is told as a folder that is gone
            if self.folder.exists() or (now := self._now()) is None:
                return
            self._unlink()
            link, there = self.folder, now
            while not link.parent.is_dir() and link.name == there.name:  # a folder above it was renamed
                link, there = link.parent, there.parent
            link.symlink_to(there, target_is_directory=True)
            self._links.append(link)
            self.moves += 1
            self._tell(f"{self.folder} was moved to {now}: the run goes on there; until its end the old name leads to it")

    def going_on(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, retried where a file was missing because the folder was moving. Raises FileNotFoundError else."""
        while True:
            moves = self.moves
            try:
                return work()
            except FileNotFoundError:
                self.look()
                if self.moves == moves:
                    raise

    def close(self) -> None:
        """Take the link away: nobody needs the old name any more."""
        self._over.set()
        self._thread.join()
        self._unlink()
        os.close(self._descriptor)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()

    def _now(self) -> Path | None:
        """Return the folder's path now; None where it is gone, or the system does not say."""
        now = Path(f"/proc/self/fd/{self._descriptor}").readlink()
        return now if os.path.samestat(now.stat(), os.fstat(self._descriptor)) else None

    def _unlink(self) -> None:
        for link in self._links:
            if link.is_symlink():
                link.unlink()
        self._links.clear()


@contextlib.contextmanager
def anchored(folder: Path, tell: Callable[[str], None]) -> Iterator[Anchor]:
    """Hold on to a folder while this lasts."""
    anchor = Anchor(folder, tell)
    try:
        yield anchor
    finally:
        with contextlib.suppress(OSError):
            anchor.close()
