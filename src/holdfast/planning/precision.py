"""Which arithmetic a run uses where its config leaves it open. Pure; what is chosen here for a CPU the trainer measures before step 1."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.config.settings import Dtype
from holdfast.machine.facts import has_bf16
from holdfast.machine.machine_file import read, training_devices

_WORTH_IT = 8 << 20  # parameters; below it a run takes seconds either way, and fp32 is the exact one
_FASTER = 1.2


def choose_precision(config: Config, model: ModelFacts, machine: Json) -> tuple[Dtype, str]:
    """(fp32 or bf16, why): bf16 where the device has units for it, no probe speaks against it, and the model is not tiny."""
    asked = config.train.precision
    if asked != "auto":
        return asked, f"{asked} as the config says"
    facts, gpus = read(machine), training_devices(machine)
    if not (has_bf16(gpus[0].get("arch")) if gpus else facts.bf16):
        faster = "; train.precision=fp16 takes its units for 16 bits" if gpus else ""
        return "fp32", f"fp32: no units that multiply bf16 are known here{faster}"
    probe = facts.probes.get("matmul")
    if probe and (probe.outcome not in (None, "ok") or (probe.bf16_speed or _FASTER) < _FASTER):
        return "fp32", "fp32: the doctor's probe found bf16 products no faster here, or wrong"
    size = model.parameters()
    if size < _WORTH_IT:
        return "fp32", f"fp32: with {size:,} parameters bf16 would save no time worth its rounding"
    return "bf16", "bf16, which this device multiplies faster; residual stream, norms, softmax and trained weights in fp32"
