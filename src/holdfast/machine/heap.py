"""How a process that trains takes main memory of glibc: from a heap that keeps what is freed, or, where memory is tight, by mappings.

What each costs: benchmarks/results/engine.md, "The allocator".
"""

from __future__ import annotations

MAPPED_FROM = 1 << 16  # bytes; where memory is tight, from here on a block is a mapping of its own and goes back when it is freed
TIGHT = 0.8  # of the memory there is. Gaps made heaps 1.1 times what was planned (benchmarks/plan/limited.py --heap), and fit into the rest
_MAPPINGS = 1 << 15  # half of what Linux lets a process have; what is beyond comes from the heap


def is_tight(needed: float, capacity: int | None) -> bool:
    """Return whether a process that needs so many bytes should give back what it frees. capacity: of main memory; None is unknown."""
    return capacity is not None and needed > TIGHT * capacity


def heap_environment(tight: bool) -> dict[str, str]:
    """Return the variables that glibc reads when a process begins.

    glibc gives big freed blocks back and pays for each page again: up to half of a step (benchmarks/allocator.py). So they are kept, unless
    memory is tight: a heap has gaps. Small freed blocks that it keeps at hand lie between big ones, which then do not join: a heap of three
    times what is needed. Pages of 2 MiB, where the kernel gives them to whoever asks, make mappings cheaper.
    """
    tunables = ["glibc.malloc.tcache_count=0", *(["glibc.malloc.hugetlb=1"] if tight else [])]
    return {
        "MALLOC_MMAP_THRESHOLD_": str(MAPPED_FROM if tight else 1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "GLIBC_TUNABLES": ":".join(tunables),
    } | ({"MALLOC_MMAP_MAX_": str(_MAPPINGS)} if tight else {})
