"""Say what torch is here and which devices it sees, as JSON on standard output. Computes nothing on them."""

from __future__ import annotations

import orjson
import torch


def probe() -> int:
    gpus = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        vendor = "amd" if torch.version.hip else "nvidia"
        arch = getattr(facts, "gcnArchName", "").split(":")[0] if vendor == "amd" else f"sm_{facts.major}{facts.minor}"
        entry = {"vendor": vendor, "arch": arch, "name": facts.name, "memory_bytes": facts.total_memory}
        gpus.append(entry | {"integrated": bool(getattr(facts, "is_integrated", False))})
    build = {"version": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda, "arch_list": torch.cuda.get_arch_list()}
    print(orjson.dumps({"torch": build, "gpus": gpus}).decode())
    return 0
