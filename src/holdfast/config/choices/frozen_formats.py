"""The formats of weights that are not trained (`train.frozen`), one record each. Reads no file, needs no torch.

What bitsandbytes is asked for is in trainer/model/frozen/quantised.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Frozen = Literal["auto", "fp32", "half", "nf4", "fp4", "int8"]


@dataclass(frozen=True)
class FrozenFormat:
    """What holdfast knows of one format. about: for the docs.

    width: bytes a number takes in fewer bits, with the scale of its block; None: not in fewer bits. apart: how far its products may be from
    those of the 16-bit weight, as a share of the norm. nested: its scales can be quantised, too (train.double_quant), for less width.
    """

    name: Frozen
    about: str
    width: float | None = None
    apart: float = 0.0
    nested: bool = False


_ALL = (
    FrozenFormat("auto", "as the model's file has it: 16 bits stay 16 bits"),
    FrozenFormat("fp32", "wide"),
    FrozenFormat("half", "bf16"),
    FrozenFormat("nf4", "4 bits, normal floats", width=0.5625, apart=0.2, nested=True),  # 0.09 of the norm is usual for weights
    FrozenFormat("fp4", "4 bits, floats", width=0.5625, apart=0.25, nested=True),  # 0.12
    FrozenFormat("int8", "8 bits, a scale for each row", width=1.01, apart=0.05),  # 0.006
)
FORMATS: Mapping[str, FrozenFormat] = {form.name: form for form in _ALL}
NESTED_SAVES = 0.05  # bytes of a number's width, where scales are quantised
