"""The host's memory as the kernel tells it. Judges nothing."""

from __future__ import annotations

from pathlib import Path


def host_memory() -> dict[str, int]:
    """/proc/meminfo in bytes by name (MemTotal, MemAvailable, SwapFree, ...); empty where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
