"""Random bits that are a function of what they are for: no generator, no state, the same on every device.

32-bit integer arithmetic gives the same bits everywhere. The mixing is the finaliser of MurmurHash3 (Austin Appleby, public domain).
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_M1, _M2 = -2048144789, -1028477387  # 0x85EBCA6B, 0xC2B2AE35 as signed 32-bit
GOLDEN = -1640531527  # 0x9E3779B9


def words_of(seed: int, step: int, name: str) -> tuple[int, int]:
    """Hash (seed, step, name) to two signed 32-bit integers."""
    digest = hashlib.blake2b(f"{seed} {step} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little", signed=True), int.from_bytes(digest[4:], "little", signed=True)


def mix(value: Tensor) -> Tensor:
    """Apply MurmurHash3's finaliser to a copy of int32 words."""
    return mix_(value.clone())


def mix_(value: Tensor, spare: Tensor | None = None) -> Tensor:
    """Apply MurmurHash3's finaliser to int32 words in place. spare: memory of the same shape for intermediate values.

    The masks make the shifts logical: an arithmetic one would clear the sign bit.
    """
    value ^= torch.bitwise_right_shift(value, 16, out=spare).bitwise_and_(0xFFFF)
    value *= _M1
    value ^= torch.bitwise_right_shift(value, 13, out=spare).bitwise_and_(0x7FFFF)
    value *= _M2
    value ^= torch.bitwise_right_shift(value, 16, out=spare).bitwise_and_(0xFFFF)
    return value
