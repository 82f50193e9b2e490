"""A torch built for a GPU finds one."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, warn
from holdfast.book.knowledge import AMD_DEVICES, WHEELS
from holdfast.run.types import Finding

_FLAGS = {"amd": f"{AMD_DEVICES} --shm-size=8g", "nvidia": "--gpus all --shm-size=8g"}
_LOADED = {
    "amd": "lspci | grep -i vga; sudo modprobe amdgpu; ls /dev/kfd",
    "nvidia": "lspci | grep -i nvidia; sudo modprobe nvidia; nvidia-smi",
}


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    vendor = machine.torch.vendor if machine.torch else None
    if vendor is None or not machine.gpus_known or machine.of(vendor) or (machine.torch and machine.torch.devices):
        return
    if any(gpu.vendor in ("amd", "nvidia") and not gpu.integrated for gpu in machine.gpus):
        return  # the other vendor's card: torch-build tells that
    what = (
        f"torch {machine.torch.version if machine.torch else ''} is built for {vendor.upper()} GPUs, but none is "
        "there: it trains on the CPU"
    )
    if machine.container:
        yield warn(f"{what}; this is a container", f"start it with: docker run {_FLAGS[vendor]} ...")
    else:
        fix = f"see whether the card is there and its driver loaded: {_LOADED[vendor]}; where there is none, the wheels of {WHEELS}/cpu do"
        yield warn(what, fix)


CARD = Check(
    title="A GPU build of torch without a GPU",
    why=(
        "A container shows no device that it was not given, and a card without its kernel driver has no device "
        "files. Torch then falls back to the CPU."
    ),
    source=["https://github.com/ROCm/legacy-rocm-build/issues/1893", "https://github.com/ROCm/legacy-rocm-build/issues/1850"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [], "os": {"container": True}},
        {"torch": {"version": "2.9.1+cu128"}, "gpus": []},
    ],
    misses=[{"torch": {"version": "2.9.1+cpu"}, "gpus": []}, {"torch": {"version": "2.9.1+cu128"}}],
    look=look,
)
