"""How much of the cards' memory is in use, and by whom. Judges nothing; what no driver tells is not there."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.base.identity import command_of
from holdfast.machine.place import Place
from holdfast.machine.vendor_tools import ask_tool

_DEADLINE_S = 5.0
_KFD = "/sys/class/kfd/kfd/proc"  # a folder per process that computes on AMD cards, in it vram_GPUID: bytes
_MIB = 1 << 20


def gpu_memory(place: Place, deadline_s: float = _DEADLINE_S) -> Json | None:
    """Return {cards: [{vendor, used_bytes, total_bytes}], processes: [{pid, bytes, command}]}, hungriest first; None without a card."""
    cards = _amd_cards(place)
    holders = _amd_holders(place)
    if place.exists("/dev/nvidiactl"):
        cards += _nvidia_cards(place, deadline_s)
        for pid, held in _rows(place, "--query-compute-apps=pid,used_memory", deadline_s):
            holders[pid] = holders.get(pid, 0) + held * _MIB
    if not cards:
        return None
    hungriest = sorted(holders.items(), key=lambda held: -held[1])
    return {"cards": cards, "processes": [{"pid": pid, "bytes": held, "command": command_of(pid)} for pid, held in hungriest]}


def in_use(facts: Json) -> str:
    """Say how much GPU memory is in use, and by which processes."""
    used, total = (sum(card[name] for card in facts["cards"]) / 2**30 for name in ("used_bytes", "total_bytes"))
    text = f"{used:.1f} of {total:.1f} GiB of the cards' memory are in use"
    holders = [f"process {one['pid']} ({one['command'] or 'gone, or not to be seen'})" for one in facts["processes"]]
    return text + (f", by {'; '.join(holders[:3])}" if holders else "")


def _amd_cards(place: Place) -> list[Json]:
    found = []
    for entry in place.entries("/sys/class/drm"):
        used, total = (place.number(entry / "device" / f"mem_info_vram_{kind}") for kind in ("used", "total"))
        if entry.name.removeprefix("card").isdecimal() and used is not None and total:
            found.append({"vendor": "amd", "used_bytes": used, "total_bytes": total})
    return found


def _amd_holders(place: Place) -> dict[int, int]:
    found: dict[int, int] = {}
    for entry in place.entries(_KFD):
        held = sum(place.number(file) or 0 for file in place.entries(entry) if file.name.startswith("vram_"))
        if entry.name.isdecimal() and held:
            found[int(entry.name)] = held
    return found


def _nvidia_cards(place: Place, deadline_s: float) -> list[Json]:
    rows = _rows(place, "--query-gpu=memory.used,memory.total", deadline_s)
    return [{"vendor": "nvidia", "used_bytes": used * _MIB, "total_bytes": total * _MIB} for used, total in rows]


def _rows(place: Place, question: str, deadline_s: float) -> list[tuple[int, int]]:
    """Return the pairs of whole numbers that nvidia-smi answers with; other lines ("[N/A]") are left out."""
    state, text = ask_tool(place, "nvidia-smi", [question, "--format=csv,noheader,nounits"], deadline_s)
    pairs = [[part.strip() for part in line.split(",")] for line in text.splitlines()] if state == "ok" else []
    return [(int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2 and all(part.isdecimal() for part in pair)]
