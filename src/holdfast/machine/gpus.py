"""Find the GPUs of a machine and their drivers in /sys and /proc. No tool is needed; what the tools told is added where it is known."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.base.files import Json
from holdfast.machine.facts import INTEGRATED
from holdfast.machine.place import Place

_VENDORS = {0x1002: "amd", 0x10DE: "nvidia"}
_KFD = "/sys/class/kfd/kfd/topology/nodes"
_FRAME_BUFFER_HEAPS = (1, 2)


def read_gpus(place: Place, told: Json) -> list[Json]:
    """Read all AMD and NVIDIA GPUs: AMD's in the order of the driver's nodes, NVIDIA's in its own, then those no driver has taken."""
    amd, nvidia, seen = _kfd_cards(place), _nvidia_cards(place, told.get("nvidia", [])), _pci_cards(place)
    if not amd:
        amd = [_as_card("amd", None, agent) for agent in told.get("amd", [])]  # WSL has no such folder; rocminfo knows
    known = {card["pci"] for card in (*amd, *nvidia)}
    for card in amd + nvidia:
        extra = seen.get(card["pci"] or "", {})
        card["name"] = card["name"] or extra.get("name")
        card["driver"] = extra.get("driver") or card["driver"]
    return [*amd, *nvidia, *(card for address, card in seen.items() if address not in known)]


def _as_card(vendor: str, pci: str | None, facts: Json) -> Json:
    arch = facts.get("arch")
    return {
        "vendor": vendor,
        "arch": arch,
        "name": facts.get("name"),
        "memory_bytes": facts.get("memory_bytes"),
        "integrated": arch in INTEGRATED if vendor == "amd" and arch else facts.get("integrated"),
        "driver": facts.get("driver"),
        "pci": pci,
    }


def _kfd_cards(place: Place) -> list[Json]:
    cards = []
    for node in place.entries(_KFD):
        facts = _properties(place, node / "properties")
        if not facts.get("simd_count") or not facts.get("gfx_target_version"):
            continue
        location, domain = facts.get("location_id", 0), facts.get("domain", 0)
        pci = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
        drm = place.path(f"/sys/class/drm/renderD{facts.get('drm_render_minor', 0)}/device")
        memory = place.number(drm / "mem_info_vram_total") or _bank_bytes(place, node)
        told = {"arch": _gfx(facts["gfx_target_version"]), "name": place.text(drm / "product_name") or None, "memory_bytes": memory}
        cards.append(_as_card("amd", pci, told | {"driver": "amdgpu"}))
    return cards


def _properties(place: Place, file: Path) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", place.text(file) or "", re.M)}


def _bank_bytes(place: Place, node: Path) -> int | None:
    banks = [_properties(place, bank / "properties") for bank in place.entries(node / "mem_banks")]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFER_HEAPS) or None


def _gfx(number: int) -> str:
    """Convert the driver's 110501 to gfx1151, 90010 to gfx90a: two decimal digits each, the last two written in hexadecimal."""
    return f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"


def _nvidia_cards(place: Place, told: list[Json]) -> list[Json]:
    by_address = {card["pci"]: card for card in told}
    for folder in place.entries("/proc/driver/nvidia/gpus"):
        model = re.search(r"^Model:\s*(.+)$", place.text(folder / "information") or "", re.M)
        by_address.setdefault(folder.name.lower(), {"name": model[1].strip() if model else None})
    return [_as_card("nvidia", pci, card | {"driver": "nvidia"}) for pci, card in by_address.items()]


def _pci_cards(place: Place) -> dict[str, Json]:
    """Display controllers and accelerators of the two vendors on the bus, by address."""
    found = {}
    for device in place.entries("/sys/bus/pci/devices"):
        vendor, kind = _VENDORS.get(place.number(device / "vendor") or 0), (place.number(device / "class") or 0) >> 16
        if vendor and kind in (0x03, 0x12):
            try:
                driver = (device / "driver").resolve(strict=True).name
            except OSError:
                driver = "none"
            name = _pci_name(place, place.number(device / "vendor") or 0, place.number(device / "device") or 0)
            found[device.name.lower()] = _as_card(vendor, device.name.lower(), {"name": name, "driver": driver})
    return found


def _pci_name(place: Place, vendor: int, device: int) -> str | None:
    for file in ("/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"):
        try:
            lines = place.path(file).read_text(errors="replace").splitlines()
        except OSError:
            continue
        inside = False
        for line in lines:
            if not line.startswith(("\t", "#")):
                inside = line.startswith(f"{vendor:04x} ")
            elif inside and line.startswith(f"\t{device:04x} "):
                return line[5:].strip()
    return None


def read_drivers(place: Place, told: Json) -> Json:
    """Return {rocm: {version, driver, firmware, repositories}, cuda: {driver}} as in a machine file."""
    proc = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", place.text("/proc/driver/nvidia/version") or "")
    smi = next((card["driver"] for card in told.get("nvidia", []) if re.match(r"\d", card.get("driver") or "")), None)
    firmware: dict[str, str] = {}
    for file in place.path("/sys/class/drm").glob("renderD*/device/fw_version/*_fw_version"):
        if value := place.text(file):
            firmware.setdefault(file.name.removesuffix("_fw_version"), value)
    return {
        "rocm": {
            "version": _rocm_version(place),
            "driver": place.text("/sys/module/amdgpu/version"),
            "firmware": firmware,
            "repositories": _repositories(place),
        },
        "cuda": {"driver": proc[1] if proc else smi},
    }


def _repositories(place: Place) -> list[str]:
    """List ROCm's package sources that apt or dnf is told of: rocm/apt/6.2, amdgpu/6.2/ubuntu, ..."""
    files = [*place.entries("/etc/apt/sources.list.d"), *place.entries("/etc/yum.repos.d")]
    texts = [line for file in files for line in (place.text(file) or "").splitlines() if not line.lstrip().startswith("#")]
    return sorted({match for line in texts for match in re.findall(r"repo\.radeon\.com/(rocm/[\w/.-]+|amdgpu/[\w/.-]+)", line)})


def _rocm_version(place: Place) -> str | None:
    """Read the version of /opt/rocm (or ROCM_PATH); a build number in its patch number is cut off."""
    folders = [place.path(folder) for folder in (place.environ.get("ROCM_PATH") or "", "/opt/rocm") if folder]
    folders += [entry for entry in reversed(place.entries("/opt")) if entry.name.startswith("rocm-")]
    for folder in folders:
        for name in (".info/version", ".info/version-dev", ".info/version-utils"):
            if found := re.match(r"\d+(\.\d+)+", place.text(folder / name) or ""):
                return found.group()
    return None
