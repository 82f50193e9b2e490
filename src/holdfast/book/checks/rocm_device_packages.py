"""Where ROCm is made of pip packages, the one with the GPU's kernels is installed."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.book.knowledge import lacks_device_package
from holdfast.run.types import Finding

_INDEX = "https://repo.amd.com/rocm/whl-multi-arch/"


def look(case: Case) -> Iterator[Finding]:
    torch, packages = case.machine.torch, case.machine.packages
    if torch is None or torch.vendor != "amd":
        return
    for gpu in case.one_of_each:
        if lacks_device_package(case.machine, gpu.arch or ""):
            name, found = f"rocm-sdk-device-{gpu.arch}", packages["rocm-sdk-libraries"]
            message = f"torch {torch.version} takes ROCm from packages, and {name} is not among them: it imports, and has no kernels"
            fix = f"pip install --no-deps '{name}=={found}' --index-url {_INDEX} (or the index that ROCm {found} came from)"
            yield block(f"{message} for {gpu.words()}", fix, _LAYOUT)
        family = f"amd-torch-device-{(gpu.arch or '')[:5]}"
        own = packages.get(f"amd-torch-device-{gpu.arch}")
        if (gpu.arch or "").startswith("gfx11") and own and not packages.get(family):
            message = f"{family} is not installed beside amd-torch-device-{gpu.arch}: fused attention fails with hipErrorInvalidValue"
            yield warn(message, f"pip install --no-deps '{family}=={own}' --index-url {_INDEX}", _FAMILY, "reported")


_LAYOUT = "https://github.com/pytorch/pytorch/issues/191688"
_FAMILY = "https://github.com/ROCm/rocm-systems/pull/10685"
CARD = Check(
    title="The package with the GPU's kernels is missing",
    why=(
        "From ROCm 7.14 on wheels of torch no longer contain ROCm: it is pip packages beside them, one of kernels for each architecture. "
        "pip leaves out what its index does not offer, and torch then imports well and fails at the first kernel."
    ),
    source=[_LAYOUT, "https://github.com/ROCm/TheRock/issues/5347", _FAMILY],
    hits=[
        {
            "torch": {"version": "2.14.0+rocm7.14"},
            "gpus": [{"arch": "gfx942"}],
            "packages": {"rocm-sdk-libraries": "7.14.0", "rocm-sdk-device-gfx1100": "7.14.0"},
        },
        {
            "torch": {"version": "2.12.0+rocm7.14.0"},
            "gpus": [{"arch": "gfx1100"}],
            "packages": {"amd-torch-device-gfx1100": "2.12.0+rocm7.14.0"},
        },
    ],
    misses=[
        {
            "torch": {"version": "2.14.0+rocm7.14"},
            "gpus": [{"arch": "gfx942"}],
            "packages": {"rocm-sdk-libraries": "7.14.0", "rocm-sdk-device-gfx942": "7.14.0"},
        },
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx942"}], "packages": {"rocm-sdk-libraries": None}},
        {"torch": {"version": "2.14.0+rocm7.14"}, "gpus": [{"arch": "gfx942"}], "packages": {"rocm-sdk-core": "7.14.0"}},
        {
            "torch": {"version": "2.12.0+rocm7.14.0"},
            "gpus": [{"arch": "gfx1100"}],
            "packages": {"amd-torch-device-gfx1100": "2.12.0", "amd-torch-device-gfx11": "2.12.0"},
        },
    ],
    look=look,
)
