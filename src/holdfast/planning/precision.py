"""Which arithmetic a run uses where its config leaves it open. Pure; what is chosen here for a CPU the trainer measures before step 1."""

from __future__ import annotations

from holdfast.base.files import Json
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.config.settings import Dtype
from holdfast.machine.facts import Probe, has_bf16, has_fast_fp16
from holdfast.machine.machine_file import read, training_devices

_WORTH_IT = 8 << 20  # parameters; below it a run takes seconds either way, and fp32 is the exact one
_FASTER = 1.2


def choose_precision(config: Config, model: ModelFacts, machine: Json) -> tuple[Dtype, str]:
    """Choose (dtype, why): bf16 where the device computes it, fp16 where it has that alone; fp32 for a tiny model or a failed probe."""
    asked = config.train.precision
    if asked != "auto":
        return asked, f"{asked} as the config says"
    facts, gpus = read(machine), training_devices(machine)
    arch, size = gpus[0].get("arch") if gpus else None, model.parameters()
    if not (has_bf16(arch) if gpus else facts.bf16):
        against = _not_in_fp16(config, arch, facts.probes.get("matmul"))
        if against or not gpus:
            return "fp32", f"fp32: no units that multiply bf16 are known here{against if gpus else ''}"
        if size >= _WORTH_IT:
            return (
                "fp16",
                "fp16 with a scaled loss: this card multiplies no bf16; it is held against fp32 on the run's own rows before step 1",
            )
    probe = facts.probes.get("matmul")
    if probe and (probe.outcome not in (None, "ok") or (probe.bf16_speed or _FASTER) < _FASTER):
        return "fp32", "fp32: the doctor's probe found bf16 products no faster here, or wrong"
    if size < _WORTH_IT:
        return "fp32", f"fp32: with {size:,} parameters bf16 would save no time worth its rounding"
    return "bf16", "bf16, which this device multiplies faster; residual stream, norms, softmax and trained weights in fp32"


def _not_in_fp16(config: Config, arch: str | None, probe: Probe | None) -> str:
    """Return what speaks against fp16 on a card that multiplies no bf16, as the end of a sentence; empty where nothing does."""
    if not has_fast_fp16(arch):
        return "; train.precision=fp16 takes its units for 16 bits"
    if config.train.weights == "bf16" or config.train.fsdp:
        return "; weights in bf16 and pieces of FSDP do not go with fp16"
    return "" if probe is None or probe.outcome in (None, "ok") else "; the doctor's probe found products wrong"
