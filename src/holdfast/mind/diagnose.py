"""Name the likeliest cause of a wreck. Pure. A first, short list: exit code and the trainer's own account before any text."""

from __future__ import annotations

import re
import signal

from holdfast.core.types import Diagnosis, Wreck

_LOW_MEMORY_BYTES = 512 << 20
_FULL_DISK_BYTES = 1 << 16
_TEXTS = (
    ("gpu_out_of_memory", re.compile(r"OutOfMemoryError|out of memory", re.I)),
    ("host_out_of_memory", re.compile(r"MemoryError|DefaultCPUAllocator: can't allocate memory|Cannot allocate memory")),
    ("disk_full", re.compile(r"No space left on device|Errno 28")),
    ("package_conflict", re.compile(r"ImportError|ModuleNotFoundError")),
)
_ADVICE = re.compile(r"CUDA_LAUNCH_BLOCKING|expandable_segments|Compile with `TORCH_USE")


def diagnose(wreck: Wreck) -> Diagnosis:
    """The cause of one ended attempt; `unknown` rather than a guess."""
    ending = wreck.ending
    if ending.kind == "nonfinite":
        facts = ending.facts
        return Diagnosis("nonfinite_numerics", 0.9, (f"loss {facts.get('loss')}, gradient norm {facts.get('grad_norm')}",))
    if ending.kind == "refused":
        return Diagnosis(str(ending.facts.get("cause", "unknown")), 0.95, (str(ending.facts.get("reason", "")),))
    if ending.kind == "disk_full" or (wreck.disk_free_bytes is not None and wreck.disk_free_bytes < _FULL_DISK_BYTES):
        return Diagnosis("disk_full", 0.95, (f"the disk of the run folder has {wreck.disk_free_bytes} bytes free",))
    if ending.kind == "no_state":
        return Diagnosis("checkpoint_unreadable", 0.95, (str(ending.facts.get("reason", "")),))
    if ending.kind == "out_of_memory":
        return Diagnosis(
            "gpu_out_of_memory" if ending.facts.get("device") == "cuda" else "host_out_of_memory", 0.95, (str(ending.facts["reason"]),)
        )
    if ending.kind == "killed":
        return _by_signal(wreck)
    if ending.kind == "error":
        return _by_text(wreck.lines)
    return Diagnosis("unknown", 0.0)


def _by_signal(wreck: Wreck) -> Diagnosis:
    number = -(wreck.ending.code or 0)
    clue = (wreck.ending.words(),)
    if number == signal.SIGBUS:
        return Diagnosis("shared_memory_exhausted", 0.7, clue)
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
        return Diagnosis("native_crash", 0.7, clue)
    available = wreck.memory_available_bytes
    if number == signal.SIGKILL and available is not None and available < _LOW_MEMORY_BYTES:
        return Diagnosis("host_out_of_memory", 0.8, (*clue, f"{available >> 20} MiB of memory left"))
    return Diagnosis("unknown", 0.0, clue)


def _by_text(lines: tuple[str, ...]) -> Diagnosis:
    """The first line that names a cause wins; advice is never evidence."""
    for line in lines:
        if _ADVICE.search(line):
            continue
        for cause, text in _TEXTS:
            if text.search(line):
                return Diagnosis(cause, 0.6, (line.strip(),))
    last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
    return Diagnosis("unknown", 0.0, (last,))
