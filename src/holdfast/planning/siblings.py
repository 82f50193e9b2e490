"""Models of one family by size: which of them would fit where one does not. A table and an estimate; reads no file."""

from __future__ import annotations

import re

from holdfast.base.units import gib
from holdfast.run.plan import Plan

_FAMILIES: dict[str, tuple[float, ...]] = {  # billions of parameters, as their names tell them
    "Qwen3.5": (0.8, 2, 4, 9, 27),
    "Qwen3": (0.6, 1.7, 4, 8, 14, 32),
    "Qwen2.5": (0.5, 1.5, 3, 7, 14, 32, 72),
    "Qwen2": (0.5, 1.5, 7, 72),
    "Llama-3.2": (1, 3),
    "Llama-3": (1, 3, 8, 70),
    "Llama-2": (7, 13, 70),
    "gemma-3": (0.27, 1, 4, 12, 27),
    "gemma-2": (2, 9, 27),
    "SmolLM2": (0.135, 0.36, 1.7),
    "SmolLM3": (3,),
    "Phi-4": (3.8, 14),
    "Mistral": (3, 7, 8, 12, 24),
    "DeepSeek-R1-Distill-Qwen": (1.5, 7, 14, 32),
    "OLMo-2": (1, 7, 13, 32),
    "pythia": (0.07, 0.16, 0.41, 1, 1.4, 2.8, 6.9, 12),
}
_MARGIN = 1.05  # by which an estimate may be too low


def largest_sibling(model: str, plan: Plan) -> str:
    """Name the largest smaller model of the family that fits, in a sentence; empty where there is none, or nothing to fit."""
    name = model.rstrip("/").rpartition("/")[2]
    family = next((one for one in sorted(_FAMILIES, key=len, reverse=True) if re.search(rf"(?i){re.escape(one)}", name)), None)
    if family is None or plan.capacity_bytes is None:
        return ""
    room = plan.capacity_bytes - (plan.reserve_bytes or 0)
    fixed = plan.bytes.context + plan.bytes.logits
    per_parameter = (plan.peak_bytes - fixed) / max(1, plan.params.total)
    for billions in sorted(_FAMILIES[family], reverse=True):
        parameters = billions * 1e9
        need = (fixed + per_parameter * parameters) * _MARGIN
        if parameters < 0.9 * plan.params.total and need <= room:
            size = f"{billions * 1000:.0f}M" if billions < 0.5 else f"{billions:g}B"
            about = f"about {gib(round(need))} with these settings; plan it to be sure"
            return f"the largest sibling that fits by its size: {family} of {size}, {about}"
    return ""
