"""Triton's own compiler takes the kernels, for cards that are not here: the interpreter lets through what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from holdfast.trainer.model.kernels import lora, ops, widen  # noqa: E402

TARGETS = {"sm_75": ("cuda", 75, 32), "sm_90": ("cuda", 90, 32), "gfx942": ("hip", "gfx942", 64), "gfx1100": ("hip", "gfx1100", 32)}
HELD: dict[str, dict[str, Any]] = {  # type of the scales, and what is fixed when a kernel is compiled
    "nf4": {"scales": "*fp32", "FOUR": True, "NESTED": False, "OUTER": 1, "BLOCK": 64},
    "nf4 twice": {"scales": "*u8", "FOUR": True, "NESTED": True, "OUTER": 256, "BLOCK": 64},
    "int8": {"scales": "*fp32", "FOUR": False, "NESTED": False, "OUTER": 1, "BLOCK": 1},
}


@pytest.mark.matrix
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


OF_LORA = dict.fromkeys(("x", "dh", "dx", "wide"), "*bf16") | dict.fromkeys(("h", "parts", "a0", "a1", "a2"), "*fp32")
OF_LORA |= dict.fromkeys(("rows", "keys"), "*i32") | {"scale": "fp32"}


@pytest.mark.matrix
@pytest.mark.parametrize("rank", [16, 32])
@pytest.mark.parametrize("name", ["project", "spread", "gather"])
def test_kernels_of_three_layers_keep_what_they_compute_in_the_registers_of_rdna3(
    name: str, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the blocks of other cards `project` writes 115 of its registers to memory and reads them again, at every turn."""
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    sizes = {
        "project": ops.sizes_of_project(3 * rank, halves=True, spills=True),
        "spread": ops.sizes_of_spread(rank, 3, halves=True, spills=True),
        "gather": ops.sizes_of_gather(3 * rank, spills=True),
    }[name]
    kernel = getattr(lora, name)
    known = {"G": 3, "RANK": rank, "PADDED": rank, "BR": rank, "DROP": True, "WIDE": True, "CUT": True} | sizes
    fixed = {argument: known[argument] for argument in kernel.arg_names if argument in known}
    types = {one: "constexpr" if one in fixed else OF_LORA.get(one, "i32") for one in kernel.arg_names}
    even = [at for at, one in enumerate(kernel.arg_names) if types[one].startswith("*") or one in ("features", "stretch")]
    source = triton.compiler.ASTSource(
        fn=kernel, signature=types, constexprs=fixed, attrs={(at,): [["tt.divisibility", 16]] for at in even}
    )
    how = {option: value for option, value in sizes.items() if option.startswith("num_")}
    made = triton.compile(source, target=GPUTarget(*TARGETS["gfx1100"]), options=how)
    assert re.findall(r"\.vgpr_spill_count:\s+(\d+)", made.asm["amdgcn"]) == ["0"]


def test_blocks_are_smaller_on_rdna3_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    there: Any = SimpleNamespace(is_cuda=True, device="cuda:0")
    monkeypatch.setattr(torch.version, "hip", "7.2")
    for arch, smaller in (("gfx1100", True), ("gfx1201", False), ("gfx942:sramecc+", False)):
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, arch=arch: SimpleNamespace(gcnArchName=arch))
        assert ops._spills(there) == smaller
    monkeypatch.setattr(torch.version, "hip", None)
    assert not ops._spills(there) and not ops._spills(torch.ones(1))
    assert ops.sizes_of_project(48, True, False) == {"BT": 64, "BF": 64, "num_warps": 4, "num_stages": 3}, "as they were proven on a card"
    assert ops.sizes_of_spread(16, 3, True, False) == {"BT": 64, "BF": 64, "num_warps": 4}
    assert ops.sizes_of_gather(48, False) == {"BT": 32, "BF": 128, "num_warps": 8, "num_stages": 3}
