"""One start of the trainer, or of somebody else's command, and what it publishes while it lives."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.files import Json, read_json
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import of_rank


@dataclass(frozen=True)
class Attempt:
    """One start of the trainer: its number and folder."""

    number: int
    folder: Path
    shim: subprocess.Popen[bytes] | None  # None: started by another supervisor
    stood_by: bool = False

    def pulse(self, rank: int = 0) -> Json | None:
        """What the trainer, or another rank's, published last; None before its first beat."""
        memory = self._memory(rank)
        if memory is None:
            return None
        with memory:
            pulse = memory.pulse()
        return pulse if pulse and pulse.get("attempt") == self.number else None

    def unwritten(self) -> int:
        """Committed steps whose rows the disk has not taken, because it is full."""
        memory = self._memory()
        if memory is None:
            return 0
        with memory:
            return memory.unwritten

    def _memory(self, rank: int = 0) -> MemoryFile | None:
        ready = read_json(self.folder / "ready.json")
        return MemoryFile.open(of_rank(Path(ready["memory_file"]), rank)) if ready else None
