"""Cards of AMD by the files of their driver (amdgpu): no library of the vendor's, which may hang or crash whoever imports it."""

from __future__ import annotations

import re
import struct
from pathlib import Path

from holdfast.base.files import Json
from holdfast.machine.place import Place
from holdfast.machine.readings.card import card_of, over

_MILLI, _MICRO, _MEGA = 1000, 1_000_000, 1_000_000
_KFD = "/sys/class/kfd/kfd"
_METRICS_1_3 = (120, 1, 3)  # size, format and content of the table whose word of 64 bits at 112 says what slows a card down
_SLOWED_AT = 112
_SLOWED_BY = {"power": range(16), "brake": range(16, 32), "heat": range(32, 56)}  # its bits: power, currents, temperatures


def amd_cards(place: Place) -> list[Json]:
    devices = [entry / "device" for entry in place.entries("/sys/class/drm") if re.fullmatch(r"card\d+", entry.name)]
    return [_card(place, device) for device in devices if place.number(device / "vendor") == 0x1002]


def _card(place: Place, device: Path) -> Json:
    """Read gpu_busy_percent, mem_info_*, gpu_metrics and hwmon, whose temperatures are in thousandths and powers in millionths."""
    hwmon = next(iter(place.entries(device / "hwmon")), device / "hwmon")
    power = place.number(hwmon / "power1_average")
    hottest = "temp2" if place.text(hwmon / "temp2_label") == "junction" else "temp1"
    speed = re.match(r"[\d.]+", place.text(device / "current_link_speed") or "")
    return card_of(
        place.text(device / "product_name") or "AMD GPU",
        busy=over(place.number(device / "gpu_busy_percent"), 100),
        memory_bytes=place.number(device / "mem_info_vram_total"),
        memory_used_bytes=place.number(device / "mem_info_vram_used"),
        celsius=over(place.number(hwmon / f"{hottest}_input"), _MILLI),
        celsius_limit=over(place.number(hwmon / f"{hottest}_crit"), _MILLI),
        watts=over(place.number(hwmon / "power1_input") if power is None else power, _MICRO),
        watts_cap=over(place.number(hwmon / "power1_cap"), _MICRO),
        watts_usual=over(place.number(hwmon / "power1_cap_default"), _MICRO),
        mhz=over(place.number(hwmon / "freq1_input"), _MEGA),
        fan=over(place.number(hwmon / "pwm1"), place.number(hwmon / "pwm1_max") or 255),
        pcie_lanes=place.number(device / "current_link_width"),
        pcie_gts=float(speed[0]) if speed else None,
        slowed=_slowed(device / "gpu_metrics"),
        holders=_holders(place, device),
    )


def _slowed(table: Path) -> list[str] | None:
    try:
        data = table.read_bytes()
        known = struct.unpack_from("<HBB", data) == _METRICS_1_3
        (bits,) = struct.unpack_from("<Q", data, _SLOWED_AT) if known else (None,)
    except (OSError, struct.error):
        return None
    if bits is None or bits == (1 << 64) - 1:  # a table of another kind; a field that the card does not fill
        return None
    return [name for name, numbers in _SLOWED_BY.items() if any(bits >> number & 1 for number in numbers)]


def _holders(place: Place, device: Path) -> dict[str, int] | None:
    """Return bytes of the card's memory by process; None where the driver for computing does not know the card."""
    render = {entry.name.removeprefix("renderD") for entry in place.entries(device / "drm") if entry.name.startswith("renderD")}
    for node in place.entries(f"{_KFD}/topology/nodes"):
        minor = re.search(r"^drm_render_minor (\d+)$", place.text(node / "properties") or "", re.M)
        if minor and minor[1] in render:
            ours = f"vram_{place.text(node / 'gpu_id')}"
            held = {process.name: place.number(process / ours) or 0 for process in place.entries(f"{_KFD}/proc")}
            return {pid: size for pid, size in held.items() if size}
    return None
