"""One start of the trainer or of a command, while it lives and after: its folder and what its processes publish."""

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
        """Return the newest pulse of the trainer, or of another rank's; None before its first beat."""
        memory = self._memory(rank)
        if memory is None:
            return None
        with memory:
            pulse = memory.pulse()
        return pulse if pulse and pulse.get("attempt") == self.number else None

    def unwritten(self) -> int:
        """Count the committed steps whose rows the disk has not taken, because it is full."""
        memory = self._memory()
        if memory is None:
            return 0
        with memory:
            return memory.unwritten

    def _memory(self, rank: int = 0) -> MemoryFile | None:
        ready = read_json(self.folder / "ready.json")
        return MemoryFile.open(of_rank(Path(ready["memory_file"]), rank)) if ready else None
