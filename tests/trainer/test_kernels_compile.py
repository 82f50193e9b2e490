"""Triton's own compiler takes the kernels, for cards that are not here: the interpreter lets through what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

from holdfast.trainer.model.kernels import widen  # noqa: E402

TARGETS = {"sm_75": ("cuda", 75, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64), "gfx1100": ("hip", "gfx1100", 32)}
HELD: dict[str, dict[str, Any]] = {  # type of the scales, and what is fixed when a kernel is compiled
    "nf4": {"scales": "*fp32", "FOUR": True, "NESTED": False, "OUTER": 1, "BLOCK": 64},
    "nf4 twice": {"scales": "*u8", "FOUR": True, "NESTED": True, "OUTER": 256, "BLOCK": 64},
    "int8": {"scales": "*fp32", "FOUR": False, "NESTED": False, "OUTER": 1, "BLOCK": 1},
}


@pytest.mark.parametrize("padded", [0, 32])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("held", HELD)
def test_weights_in_fewer_bits_are_widened_by_a_kernel_that_compiles(
    held: str, target: str, padded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # compiled now, not found, and nothing is left in the user's home
    fixed = HELD[held] | {"PADDED": padded, "BR": 4, "BC": 512}
    scales = fixed.pop("scales")
    pointers = {"packed": "*u8" if fixed["FOUR"] else "*i8", "scales": scales, "up": "*bf16", "out": "*bf16"}
    pointers |= dict.fromkeys(("code", "codes", "outer", "offset"), "*fp32")
    types = {name: pointers.get(name) or ("constexpr" if name in fixed else "i32") for name in widen.widen.arg_names}
    source = triton.compiler.ASTSource(fn=widen.widen, signature=types, constexprs=fixed)
    made = triton.compile(source, target=GPUTarget(*TARGETS[target]), options={"num_warps": 4})
    assert made.asm["ttir"]
