"""The host's memory as the kernel tells it. Judges nothing."""

from __future__ import annotations

import re
from pathlib import Path

_LINE = re.compile(r"^(\S+):\s*(\d{1,18}) kB$", re.M)


def host_memory(file: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Read /proc/meminfo in bytes by name (MemTotal, MemAvailable, SwapFree, ...); empty where there is none."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    return {name: int(number) * 1024 for name, number in _LINE.findall(text)}
