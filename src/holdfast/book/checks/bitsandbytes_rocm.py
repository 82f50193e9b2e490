"""Bitsandbytes has kernels for the AMD GPU."""

from collections.abc import Iterator

from holdfast.book.knowledge import row_of
from holdfast.core.check import Case, Check, warn
from holdfast.core.types import Finding
from holdfast.core.versions import within


def look(case: Case) -> Iterator[Finding]:
    torch, installed = case.machine.torch, case.machine.package("bitsandbytes")
    row = row_of("architectures", "bitsandbytes", version=installed) if torch and torch.vendor == "amd" and installed else None
    if row is None:
        return
    for gpu in {gpu.arch: gpu for gpu in case.cards if gpu.arch}.values():
        if gpu.arch not in row["archs"]:
            what = f"has kernels for {', '.join(row['archs'])}" if row["archs"] else "has no ROCm library"
            newer = "" if gpu.arch in ("gfx900", "gfx906") else "pip install --no-deps -U bitsandbytes (0.50 or newer), or "
            yield warn(
                f"bitsandbytes {installed} {what}, not for {gpu.words()}: 4-bit and 8-bit fail",
                f"{newer}build it from source for {gpu.arch}; 16-bit LoRA needs none of it",
            )
        elif gpu.arch in _WIDE and within(installed, "<0.49.2"):
            message = f"bitsandbytes {installed} cannot read 4-bit weights of block size 64 on {gpu.words()}, whose wavefronts are 64 wide"
            yield warn(message, "pip install --no-deps -U 'bitsandbytes>=0.49.2'", _BLOCKS)


_WIDE = ("gfx908", "gfx90a", "gfx942", "gfx950")
_BLOCKS = "https://github.com/unslothai/unsloth/issues/4161"
CARD = Check(
    title="bitsandbytes has no kernels for this AMD GPU",
    why=(
        "Its wheels hold one library per ROCm version with a list of architectures each. The package imports "
        "without them and fails when a 4-bit layer runs."
    ),
    source=["https://github.com/bitsandbytes-foundation/bitsandbytes/pull/2059", "https://pypi.org/project/bitsandbytes/"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx906"}], "packages": {"bitsandbytes": "0.50.2"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}], "packages": {"bitsandbytes": "0.47.0"}},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx90a"}], "packages": {"bitsandbytes": "0.49.0"}},
    ],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}], "packages": {"bitsandbytes": "0.49.2"}},
        {"torch": {"version": "2.9.1+cu128"}, "gpus": [{"arch": "sm_90"}], "packages": {"bitsandbytes": "0.47.0"}},
    ],
    look=look,
)
