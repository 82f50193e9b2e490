"""Whether a second trainer may wait beside the one that trains, and how much it may hold. Pure."""

from __future__ import annotations

from typing import Literal

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.machine.machine_file import training_devices
from holdfast.planning.plan import PROCESS_BYTES, USABLE_SHARE, usable
from holdfast.run.plan import Plan

_OF_THE_MODEL = ("weights", "adapter", "gradients", "optimizer")


def standby_mode(config: Config, plan: Plan, machine: Json, ranks: int = 1) -> Literal["off", "imports", "model"]:
    """Choose `model`: imports done and model built; `imports`: on a GPU's host, or where memory is short; `off`: unwanted, or no room.

    Goes by the host's capacity in bytes, never by what happens to be free. A run that asks for a standby gets one. ranks: trainers on this
    host, each of which has a standby.
    """
    if config.run.standby is False:
        return "off"
    model = sum(getattr(plan.bytes, kind) for kind in _OF_THE_MODEL)
    on_gpu = bool(training_devices(machine))
    away = plan.host_bytes if config.train.offload == "layers" else None
    trainer = PROCESS_BYTES + (away or plan.bytes.weights) if on_gpu else plan.peak_bytes
    memory = machine.get("memory_bytes") or 0
    room = (USABLE_SHARE * memory if on_gpu else usable(config.train, memory)) - ranks * (trainer + PROCESS_BYTES)
    if not on_gpu and room >= ranks * model:
        return "model"
    return "imports" if room >= 0 or config.run.standby else "off"
