"""Cards of NVIDIA by its management library (NVML), through the package nvidia-ml-py."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from holdfast.base.files import Json
from holdfast.machine.readings.card import card_of, over

_MILLI = 1000
_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # of a lane, by generation of PCIe
_REASONS = {  # NVML's clock event reasons, as nvml.h numbers them
    "power": 0x4,  # SW power cap
    "heat": 0x20 | 0x40,  # SW and HW thermal slowdown
    "brake": 0x8 | 0x80,  # HW slowdown, HW power brake
}


def nvml_reader() -> Callable[[], list[Json]] | None:
    """Return a function that reads NVIDIA's cards; None without the package or without a driver."""
    if importlib.util.find_spec("pynvml") is None:
        return None
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        cards = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError:
        return None
    return lambda: [nvidia_card(nvml, card) for card in cards]


def nvidia_card(nvml: Any, card: Any) -> Json:
    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(card, *arguments)
        except nvml.NVMLError:  # not of this card
            return None

    memory, use = ask("nvmlDeviceGetMemoryInfo"), ask("nvmlDeviceGetUtilizationRates")
    reasons, running = ask("nvmlDeviceGetCurrentClocksThrottleReasons"), ask("nvmlDeviceGetComputeRunningProcesses")
    heat = bool(reasons and reasons & _REASONS["heat"])
    slowed = None
    if reasons is not None:  # where it is known to be heat, the general word for a slowdown by hardware adds nothing
        slowed = [name for name, bits in _REASONS.items() if reasons & (bits & ~0x8 if heat else bits)]
    name = ask("nvmlDeviceGetName")
    return card_of(
        name.decode() if isinstance(name, bytes) else name or "NVIDIA GPU",
        busy=over(use.gpu, 100) if use else None,
        memory_bytes=memory.total if memory else None,
        memory_used_bytes=memory.used if memory else None,
        celsius=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        celsius_limit=ask("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        watts=over(ask("nvmlDeviceGetPowerUsage"), _MILLI),
        watts_cap=over(ask("nvmlDeviceGetEnforcedPowerLimit"), _MILLI),
        watts_usual=over(ask("nvmlDeviceGetPowerManagementDefaultLimit"), _MILLI),
        mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        fan=over(ask("nvmlDeviceGetFanSpeed"), 100),
        pcie_lanes=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_gts=_GTS.get(ask("nvmlDeviceGetCurrPcieLinkGeneration") or 0),
        slowed=slowed,
        holders=None if running is None else {str(one.pid): one.usedGpuMemory or 0 for one in running},
    )
