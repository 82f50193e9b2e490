"""Judge a machine before the run: what blocks, what is risky. Pure; facts come from world/machine.py."""

from __future__ import annotations

import re

from holdfast.core.config import Config
from holdfast.core.files import Json
from holdfast.core.types import Finding

TORCH_NEEDED = (2, 4)
TRANSFORMERS_NEEDED = (4, 57)
TORCH_FOR_TRANSFORMERS_5 = (2, 6)
_CHECKPOINT_BYTES_PER_PARAMETER = 12  # fp32 weight and two Adam moments
_JOURNAL_BYTES, _DISK_WARN_BYTES = 1 << 20, 512 << 20


def preflight(config: Config, machine: Json, plan: Json | None) -> list[Finding]:
    """Findings on torch, packages, disk and memory, the blocking ones first."""
    found = [
        *_torch(machine),
        *_packages(machine),
        *_disk(config, machine, plan),
        *(_memory(plan) if plan else []),
        *_precision(config, machine),
    ]
    order = {"block": 0, "warn": 1, "info": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


def _torch(machine: Json) -> list[Finding]:
    torch = machine.get("torch")
    if torch is None:
        reason = machine.get("torch_error", "it is not installed")
        return [Finding("torch-import", "block", f"torch cannot be imported: {reason}", "pip install 'holdfast[train]'")]
    if version(torch["version"]) < TORCH_NEEDED:
        fix = "install a torch of 2.4 or newer that was built for this machine's device"
        return [Finding("torch-version", "block", f"torch {torch['version']} is older than 2.4", fix)]
    gpus = machine.get("gpus") or []
    device = gpus[0]["name"] if gpus else f"the CPU, {machine.get('cpu', {}).get('threads')} threads"
    return [Finding("device", "info", f"torch {torch['version']} trains on {device}")]


def _packages(machine: Json) -> list[Finding]:
    packages = machine.get("packages", {})
    missing = [name for name in ("transformers", "peft") if name in packages and packages[name] is None]
    if missing:
        return [Finding("packages-missing", "block", f"{' and '.join(missing)} not installed", f"pip install {' '.join(missing)}")]
    transformers, torch = packages.get("transformers"), machine.get("torch")
    if transformers is None or torch is None:
        return []
    if version(transformers) < TRANSFORMERS_NEEDED:
        message = f"transformers {transformers} is older than 4.57"
        return [Finding("transformers-version", "block", message, "pip install -U 'transformers>=4.57'")]
    if version(transformers) >= (5, 0) and version(torch["version"]) < TORCH_FOR_TRANSFORMERS_5:
        message = f"transformers {transformers} needs torch 2.6 or newer, this is {torch['version']}"
        return [Finding("transformers-torch", "block", message, "pip install 'transformers>=4.57,<5' (keeps this torch)")]
    return []


def _disk(config: Config, machine: Json, plan: Json | None) -> list[Finding]:
    """Blocks when the checkpoints that are kept, one being written and the journals cannot fit."""
    free = machine.get("disk_free_bytes")
    if free is None or free >= _DISK_WARN_BYTES:
        return []
    checkpoint = plan["params"]["trainable"] * _CHECKPOINT_BYTES_PER_PARAMETER if plan else 0
    kept = config.save.keep + (1 if config.evaluate.every else 0)  # the best one beside the newest
    needed = (kept + 2) * checkpoint + _JOURNAL_BYTES
    message = f"the disk of the run folder has {free / 2**20:.1f} MiB free, the run needs about {needed / 2**20:.1f} MiB"
    return [Finding("disk-space", "block" if free < needed else "warn", message, "make room, or choose another --run DIR")]


def _memory(plan: Json) -> list[Finding]:
    if plan["fits"] is not False:
        return []
    message = f"the run needs about {plan['peak_bytes'] / 2**30:.1f} GiB, the device has {plan['capacity_bytes'] / 2**30:.1f} GiB"
    return [Finding("memory-plan", "warn", message, "lower train.max_tokens or train.micro_batch_tokens, or use train.precision=bf16")]


def _precision(config: Config, machine: Json) -> list[Finding]:
    gpus = machine.get("gpus") or []
    if config.train.precision == "bf16" and gpus and str(gpus[0].get("arch", "")) in ("sm_60", "sm_61", "sm_70", "sm_75"):
        return [Finding("bf16-hardware", "warn", f"{gpus[0]['name']} computes bf16 in software", "train.precision=fp32")]
    return []


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.5.1+rocm6.2" -> (2, 5, 1)."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()
