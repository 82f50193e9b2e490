"""Hold a diagnosis against what the doctor found on the machine it happened on: a finding that explains the line comes first. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base.files import Json
from holdfast.run.types import Finding

_GPU_DIED = ("gpu_kernel_fault", "native_crash", "hang", "driver_or_firmware")
_NO_DEVICE = ("device_access_denied", "wrong_torch_build", "wrong_device_selected", "driver_or_firmware", "gpu_memory_unavailable")
_IMPORTS = ("package_conflict", "native_library_mismatch", "wrong_torch_build", "native_build_failure")
_NAN = ("nonfinite_numerics", "nonfinite_kernel", "no_learning_signal", "divergence")
_NO_GPU = (
    r"(?i)no (?:HIP|CUDA) GPUs|hsa_init|/dev/kfd|permission denied|device count|is_available|found no NVIDIA|no CUDA-capable"
    r"|hipErrorNoDevice"
)


@dataclass(frozen=True)
class Explains:
    """What a finding of the doctor's accounts for. cause: what the failure is then called, empty: as it was; of: causes that it explains;
    says: what the log has to say, too, where the cause alone says little; a log whose cause is unknown is explained by its words alone."""

    cause: str
    of: tuple[str, ...]
    says: str = ""


_OF_ARCH = Explains("unsupported_gpu_arch", ("unsupported_gpu_arch", "gpu_kernel_fault", "blas_library_failure", "native_crash"))
_OF_DEVICE = Explains("device_access_denied", _NO_DEVICE, _NO_GPU)
_OF_BUILD = Explains("wrong_torch_build", (*_NO_DEVICE, "native_library_mismatch", "unsupported_gpu_arch"))
_OF_DRIVER = Explains("driver_or_firmware", (*_GPU_DIED, "wrong_torch_build", "device_access_denied"))
_OF_TORCHAO = Explains("package_conflict", _IMPORTS, r"(?i)torchao|torch\.int1|'int1'|has no attribute 'int[1-7]'")
_OF_KERNELS = Explains("", (*_GPU_DIED, "blas_library_failure", "nonfinite_kernel"))
_EXPLAINS: dict[str, Explains] = {
    "gfx-override": Explains(
        "wrong_gfx_override", (*_GPU_DIED, "unsupported_gpu_arch", "blas_library_failure", *_NAN, "wrong_gfx_override")
    ),
    "gpu-arch": _OF_ARCH,
    "rocm-device-packages": _OF_ARCH,
    "three-architectures": _OF_ARCH,
    "torch-build": _OF_BUILD,
    "torch-version": Explains("package_conflict", (*_IMPORTS, "unsupported_gpu_arch")),
    "torch-import": Explains("native_library_mismatch", _IMPORTS),
    "torch-sees-no-gpu": Explains("", _NO_DEVICE, _NO_GPU),
    "device-access": _OF_DEVICE,
    "no-gpu": Explains("", _NO_DEVICE, _NO_GPU),
    "driver-loaded": _OF_DRIVER,
    "amd-driver": _OF_DRIVER,
    "nvidia-driver": Explains(
        "driver_or_firmware", ("driver_or_firmware", "wrong_torch_build", "device_access_denied", "unsupported_gpu_arch")
    ),
    "mes-firmware": Explains("driver_or_firmware", _GPU_DIED),
    "kernel-rdna3": Explains("driver_or_firmware", _GPU_DIED),
    "visible-devices": Explains("wrong_device_selected", _NO_DEVICE, r"(?i)invalid device ordinal|" + _NO_GPU[4:]),
    "amdsmi-clash": Explains("package_conflict", (*_NO_DEVICE, "package_conflict"), _NO_GPU + "|amdsmi"),
    "management-library": Explains("package_conflict", ("package_conflict", "native_library_mismatch"), r"(?i)amdsmi|nvml|smi"),
    "torchao-int1": _OF_TORCHAO,
    "torchao-peft": _OF_TORCHAO,
    "torchao-scaling": Explains("package_conflict", _IMPORTS, r"(?i)torchao|ScalingType"),
    "transformers-torch": Explains("package_conflict", _IMPORTS, r"(?i)PyTorch was not found|Disabling PyTorch|transformers"),
    "transformers-version": Explains("package_conflict", _IMPORTS, r"(?i)transformers"),
    "triton-packages": Explains("package_conflict", (*_IMPORTS, "native_crash"), r"(?i)triton"),
    "bitsandbytes-kernels": Explains("", (*_IMPORTS, "gpu_kernel_fault", "nonfinite_kernel"), r"(?i)bitsandbytes|bnb|4bit|8bit"),
    "flash-attention": Explains("", (*_IMPORTS, "unsupported_gpu_arch", "gpu_kernel_fault"), r"(?i)flash.?attn|flash.?attention"),
    "packages-missing": Explains("package_conflict", _IMPORTS, r"(?i)No module named|ModuleNotFound"),
    "blas-kernels": Explains("blas_library_failure", ("blas_library_failure", "unsupported_gpu_arch", *_GPU_DIED)),
    "allocator-options": Explains(
        "allocator_option_bug",
        ("allocator_option_bug", "gpu_memory_unavailable", "gpu_out_of_memory", "native_crash"),
        r"(?i)expandable.?segments|ALLOC_CONF|CUDACachingAllocator|INTERNAL ASSERT",
    ),
    "shared-memory": Explains(
        "shared_memory_exhausted", ("shared_memory_exhausted", "native_crash", "communication_failure"), r"(?i)bus error|shm|shared memory"
    ),
    "disk-space": Explains("disk_full", ("disk_full",)),
    "integrated-gpu": Explains("gpu_memory_unavailable", ("gpu_out_of_memory", "gpu_memory_unavailable")),
    "rdna4-narrow-products": Explains("gpu_kernel_fault", (*_GPU_DIED, "nonfinite_kernel")),
    "rdna4-rocm": _OF_KERNELS,
    "gfx900-rocm60": _OF_KERNELS,
    "rdna3-torch28": _OF_KERNELS,
    "cudnn-attention": Explains("nonfinite_kernel", _NAN),
    "masked-rows-torch24": Explains("nonfinite_kernel", _NAN),
    "bf16-hardware": Explains("", ("precision_mismatch", "nonfinite_numerics")),
    "python-wheel": Explains("wrong_torch_build", ("wrong_torch_build", "package_conflict", "native_build_failure")),
    "windows-subsystem": Explains("", (*_NO_DEVICE, "gpu_out_of_memory"), _NO_GPU),
}
_AGAINST_MACHINE = 0.5  # of the confidence in a cause that the machine's facts speak against
_SURE = {"block": 0.85, "warn": 0.65}
_STRONG = 0.9  # a cause that is this sure is left to what has named it, unless the finding is of that cause
_SHARE = {"confirmed": 1.0, "reported": 0.9, "folk": 0.7, "refuted": 0.0}


def on_this_machine(found: Json, findings: Sequence[Finding], text: str, machine: Json) -> Json:
    """Return a diagnosis as JSON, with the findings that explain it first. found: as diagnosis/explain.py gives it; text: of the log."""
    explaining = sorted(
        (one for one in findings if _explains(one, found, text)), key=lambda one: (one.severity != "block", -_fit(one, found))
    )
    cleared = _cleared(findings, machine)
    found = found | {"also": [one for one in found["also"] if one["cause"] not in cleared]}
    if not explaining:
        return _doubted(found, cleared[found["cause"]]) if found["cause"] in cleared else found
    first = explaining[0]
    cause = _EXPLAINS[first.id].cause or found["cause"]
    sure = round(max(_SURE[first.severity] * _SHARE[first.standing], found["confidence"] if cause == found["cause"] else 0.0), 3)
    others = [{"cause": found["cause"], "confidence": round((1 - sure) * found["confidence"], 3)}] if cause != found["cause"] else []
    others += [one for one in found["also"] if one["cause"] not in (cause, found["cause"])]
    fixes = [_remedy(one) for one in explaining if one.fix]
    told = {remedy["what"] for remedy in fixes}
    return found | {
        "cause": "unknown" if cause == "unknown" else cause,
        "confidence": sure,
        "also": others,
        "clues": [*found["clues"], *({"line": None, "text": f"this machine, {one.id}: {one.message}"} for one in explaining)],
        "explanation": f"{first.message[:1].upper()}{first.message[1:]}. That explains the line. {found['explanation']}".strip(),
        "remedies": [*fixes, *(one for one in found["remedies"] if one["what"] not in told and cause == found["cause"])][:6]
        or found["remedies"],
        "cards": [first.id, *found["cards"]],
        "findings": [one.id for one in explaining],
    }


def _doubted(found: Json, fact: str) -> Json:
    """Return a diagnosis with less confidence, because a fact of the machine speaks against it."""
    sure = round(found["confidence"] * _AGAINST_MACHINE, 3)
    clues = [*found["clues"], {"line": None, "text": f"this machine: {fact}"}]
    return found | {"confidence": sure, "clues": clues, "explanation": f"{found['explanation']} But on this machine {fact}."}


def _explains(finding: Finding, found: Json, text: str) -> bool:
    known = _EXPLAINS.get(finding.id)
    if known is None or finding.severity not in _SURE or not _SHARE[finding.standing]:
        return False
    says = bool(known.says and re.search(known.says, text))
    if found["cause"] == "unknown":
        return says or (not known.says and any(one["cause"] in known.of for one in found["also"]))
    if known.says and not says and found["cause"] != known.cause:
        return False
    if found["cause"] in known.of or found["cause"] == known.cause:
        return True
    return found["confidence"] < _STRONG and says


def _fit(finding: Finding, found: Json) -> float:
    """Score how near a finding is to what the log says: the same cause, one of the others, or merely one that it can lead to."""
    known = _EXPLAINS[finding.id]
    if known.says:
        return 3.0
    if known.cause == found["cause"]:
        return 2.0
    return 1.0 + sum(float(one["confidence"]) for one in found["also"] if one["cause"] == known.cause)


def _cleared(findings: Sequence[Finding], machine: Json) -> dict[str, str]:
    """Return the causes that the machine's facts speak against, and which facts."""
    wrong = {_EXPLAINS[one.id].cause for one in findings if one.id in _EXPLAINS and one.severity in _SURE}
    cleared: dict[str, str] = {}
    if isinstance(machine.get("env"), dict) and "wrong_gfx_override" not in wrong:
        cleared["wrong_gfx_override"] = "no HSA_OVERRIDE_GFX_VERSION that changes anything"
    devices = machine.get("devices")
    open_to_all = isinstance(devices, dict) and devices and all(isinstance(one, dict) and one.get("readable") for one in devices.values())
    if open_to_all and "device_access_denied" not in wrong:
        cleared["device_access_denied"] = "all device nodes can be opened"
    return cleared


def _remedy(finding: Finding) -> Json:
    """Convert the doctor's fix to a remedy; one that begins with a command is that command."""
    is_command = re.match(r"(?:unset|export|pip|sudo|apt|usermod|modprobe)\b", finding.fix)
    what = finding.fix if is_command else finding.fix[:1].upper() + finding.fix[1:]
    first = re.split(r" \(|; |, (?:and|or|then) ", finding.fix)[0] if is_command else ""
    return {
        "id": finding.id,
        "what": what,
        "patch": {},
        "command": first,
        "standing": finding.standing,
        "source": finding.source or f"holdfast explain {finding.id}",
    }
