"""Where facts are read from: the real machine, or a recorded tree of one. Every read that fails is an unknown, never an error."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """A root that /sys, /proc, /opt, /etc and /dev lie under, and an environment."""

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def real(self) -> bool:
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def text(self, name: str | Path) -> str | None:
        """Read the text of a file without the space around it, its first mebibyte at most."""
        path = name if isinstance(name, Path) else self.path(name)
        try:
            with path.open("rb") as handle:
                return handle.read(_MOST_BYTES).decode(errors="replace").strip()
        except (OSError, ValueError):
            return None

    def number(self, name: str | Path) -> int | None:
        text = self.text(name)
        try:
            return int(text, 0) if text else None
        except ValueError:
            return None

    def entries(self, name: str | Path) -> list[Path]:
        """List the entries of a folder, numbers in the order of numbers."""
        path = name if isinstance(name, Path) else self.path(name)
        try:
            return sorted(
                path.iterdir(), key=lambda entry: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", entry.name)]
            )
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        try:
            return self.path(name).exists()
        except OSError:
            return False

    def tool(self, name: str) -> str | None:
        return shutil.which(name, path=self.environ.get("PATH", ""))
