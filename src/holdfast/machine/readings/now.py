"""What a machine is doing this moment: processors, memory, and GPUs. None is unknown; nothing is judged."""

from __future__ import annotations

import re
import threading
import time

from holdfast.base.files import Json
from holdfast.machine import clock
from holdfast.machine.host_memory import host_memory
from holdfast.machine.place import Place
from holdfast.machine.readings.amd import amd_cards
from holdfast.machine.readings.nvidia import nvml_reader
from holdfast.machine.system import LIMITS, group_folders, memory_limit

EVERY_S, STALE_S = 2.0, 20.0
_HELD = ("memory.current", "memory.usage_in_bytes")  # control groups, of both versions


class MachineReader:
    """Reads a machine; what processors did is known from the second time on."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._nvidia = nvml_reader() if place.real else None
        self._before = processor_times(place)

    def read(self) -> Json:
        now = processor_times(self._place)
        found = read_now(self._place, self._before, now) | {"time": round(clock.now(), 3)}
        found["gpus"] += self._nvidia() if self._nvidia else []
        self._before = now
        return found


class Sampler:
    """Reads again and again in a thread of its own, so that a driver that hangs keeps nobody waiting."""

    def __init__(self, place: Place | None = None) -> None:
        self._read: tuple[float, Json] = (0.0, {})
        self._place = place or Place()
        self._ended = threading.Event()

    @property
    def latest(self) -> Json:
        """What it read last; empty where that is no longer how the machine is, as the driver does not answer."""
        at, found = self._read
        return found if time.monotonic() - at < STALE_S else {}

    def start(self) -> None:
        threading.Thread(target=self._sample, daemon=True).start()

    def end(self) -> None:
        self._ended.set()

    def _sample(self) -> None:
        reader = MachineReader(self._place)
        while not self._ended.wait(EVERY_S):
            found = reader.read()
            self._read = time.monotonic(), found


def read_now(place: Place, before: tuple[int, int] | None, now: tuple[int, int] | None) -> Json:
    """Read processors_busy, the share of time between two counts in which processors worked, and gpus, those of AMD's driver."""
    memory = host_memory(place.path("/proc/meminfo"))
    whole, used = memory.get("MemTotal"), _less(memory.get("MemTotal"), memory.get("MemAvailable"))
    limit = memory_limit(place)
    if whole and limit is not None and limit < whole:  # of a container, which ends at its own limit
        whole, used = limit, _used_by_group(place, limit)
    passed = now[1] - before[1] if before and now else 0
    return {  # the kernel's ticks of waiting for disks may go back, and with them all that passed
        "processors_busy": round(min(1.0, (now[0] - before[0]) / passed), 3) if before and now and passed > 0 else None,
        "memory_bytes": whole,
        "memory_used_bytes": used,
        "swap_used_bytes": _less(memory.get("SwapTotal"), memory.get("SwapFree")),
        "gpus": amd_cards(place),
    }


def _used_by_group(place: Place, limit: int) -> int | None:
    """Read what the control group with this limit holds, without the file pages that it gives back before it is short."""
    for folder in group_folders(place, "memory"):
        if limit not in (place.number(f"{folder}/{name}") for name in LIMITS):
            continue
        held = next((number for name in _HELD if (number := place.number(f"{folder}/{name}")) is not None), None)
        # version 1 has the group's own first and, as total_, those of the groups within beside it
        pages = dict(re.findall(r"^((?:total_)?inactive_file) (\d+)$", place.text(f"{folder}/memory.stat") or "", re.M))
        given_back = int(pages.get("total_inactive_file") or pages.get("inactive_file") or 0)
        return None if held is None else max(0, held - given_back)
    return None


def processor_times(place: Place) -> tuple[int, int] | None:
    """Read the ticks in which processors worked, and all ticks, since the machine started."""
    found = re.match(r"cpu +([\d ]+)", place.text("/proc/stat") or "")
    ticks = [int(value) for value in found[1].split()][:8] if found else []  # what follows, guests, is counted in these already
    return (sum(ticks) - sum(ticks[3:5]), sum(ticks)) if len(ticks) >= 5 else None


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part
