"""A machine out of a file, for verbs that judge or plan for one that is not this one."""

from __future__ import annotations

from pathlib import Path

import orjson

from holdfast.base.errors import USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json
from holdfast.base.safe_open import LARGEST_JSON, read_small
from holdfast.checkup.machine_report import facts_in

_MOST_CARDS, _MOST_ENTRIES = 1 << 10, 1 << 14


def recorded(file: Path) -> Json:
    """Read the machine in a file: a machine file, what doctor --json printed, or a report. Raises Stop(2)."""
    hint = "record one with: holdfast doctor --json > machine.json"
    try:
        text = read_small(file, LARGEST_JSON)
        content = facts_in(text.decode(errors="replace")) or orjson.loads(text)
    except OSError as error:
        raise at_place(error, file, "cannot be read", hint, code=USAGE) from None
    except orjson.JSONDecodeError as error:
        raise Stop(USAGE, f"{file} is not JSON: {error}", hint) from None
    machine = content.get("machine", content) if isinstance(content, dict) else None
    if not isinstance(machine, dict):
        raise Stop(USAGE, f"{file} holds no machine: a JSON object with the keys os, torch, gpus, ... is expected", hint)
    refuse_long(file, machine)
    return machine


def refuse_long(file: Path, machine: Json) -> None:
    """Raise Stop(2) where a machine file lists more of something than a machine has."""
    torch = machine.get("torch")
    found = {"gpus": machine.get("gpus"), "torch.devices": torch.get("devices") if isinstance(torch, dict) else None} | machine
    for name, value in found.items():
        most = _MOST_CARDS if name in ("gpus", "torch.devices") else _MOST_ENTRIES
        if isinstance(value, list | dict) and len(value) > most:
            text = f"{file} holds no machine: {len(value):,} entries under {name}, no machine has more than {most:,}"
            raise Stop(USAGE, text, "record one with: holdfast doctor --json > machine.json")
