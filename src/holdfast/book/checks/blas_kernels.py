"""The rocBLAS that torch brings along has kernels for the GPU."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, block
from holdfast.book.knowledge import lacks_code, lacks_device_package, rocm_wheel, sibling, wheel_advice
from holdfast.run.types import Finding

_DROPPED = ("gfx900", "gfx906")


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch is None or torch.vendor != "amd" or "HSA_OVERRIDE_GFX_VERSION" in case.machine.env:
        return
    for gpu in case.one_of_each:
        wheel = rocm_wheel(torch.version, torch.rocm)
        packaged = case.machine.package(f"rocm-sdk-device-{gpu.arch}")  # AMD's own kernels for it, beside torch
        dropped = gpu.arch in _DROPPED and torch.blas_archs is None and within(torch.rocm, ">=6.4") and not packaged
        if sibling(gpu.arch or "") or lacks_code(torch, gpu.arch or "") or lacks_device_package(case.machine, gpu.arch or ""):
            continue  # it runs as its sibling, or torch has no code for it either (gpu-arch), or a package is missing
        if (torch.blas_archs is not None and gpu.arch not in torch.blas_archs) or dropped:
            named = f"torch {torch.version}" + ("" if wheel or not torch.rocm else " (no wheel of pytorch.org)")
            message = (
                f"{named} brings a rocBLAS without kernels for {gpu.words()}: the first matrix product fails, although "
                f"{gpu.arch} may be in torch's list"
            )
            yield block(message, f"install {wheel_advice(gpu.arch or '')}, or build rocBLAS for {gpu.arch} yourself")


CARD = Check(
    title="rocBLAS has no kernels for the GPU",
    why=(
        "Torch's own kernels and rocBLAS are compiled for different lists. rocBLAS dropped gfx900 and gfx906 with "
        "ROCm 6.4, while torch goes on listing them."
    ),
    source=["https://github.com/ROCm/legacy-rocm-build/issues/4625", "https://github.com/pytorch/pytorch/issues/179865"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx906"}]},
        {"torch": {"version": "2.9.1+rocm7.1", "arch_list": ["gfx906"]}, "gpus": [{"arch": "gfx906"}]},
        {"torch": {"version": "2.9.1+rocm6.3", "hip": "6.3.0", "blas_archs": ["gfx1030"]}, "gpus": [{"arch": "gfx906"}]},
    ],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx906"}]},
        {"torch": {"version": "2.9.1+rocm6.4", "blas_archs": ["gfx906"]}, "gpus": [{"arch": "gfx906"}]},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}]},
        {"torch": {"version": "2.14.0+rocm7.14"}, "gpus": [{"arch": "gfx906"}]},
    ],
    look=look,
)
