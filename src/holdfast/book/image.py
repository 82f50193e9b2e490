"""Which container image fits a machine's card and driver. Official ones alone; what a wheel has code for, the tables say."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.base.versions import release, within
from holdfast.book.knowledge import (
    AMD_DEVICES,
    WHEELS,
    cuda_archs,
    cuda_served,
    has_code,
    rocm_wheels,
    row_of,
    runs_as_sibling,
    sibling,
    table,
)
from holdfast.machine.facts import Gpu, Machine

_PLAIN = "python:3.12-slim"
_IMAGES = ">=2.4 <2.10"  # releases of torch whose images were seen under this name
_HUB = "https://hub.docker.com/r/pytorch/pytorch/tags"
_USER_SPACE = "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/user-kernel-space-compat-matrix.html"


@dataclass(frozen=True)
class ContainerImage:
    """A base image, how holdfast's own image is built on it (in a clone of holdfast), how a run is started in it, and why this one."""

    base: str
    build: str
    run: str
    reason: str
    source: str


def image_for(machine: Machine) -> ContainerImage:
    """Choose the image for the machine's first card; the one without a GPU where no official build serves the card."""
    cards = [card for card in machine.gpus if card.arch and card.vendor in ("nvidia", "amd")]
    gpu = min(cards, key=lambda card: bool(card.integrated), default=None)
    if machine.system == "Darwin":
        return _cpu("containers on macOS see no GPU")
    if gpu is None:
        return _cpu("no GPU was found")
    if gpu.vendor == "nvidia":
        return _nvidia(gpu, machine.cuda_driver)
    if machine.wsl:
        return _cpu(f"under WSL an AMD card is reached through /dev/dxg, for which there is no official image with {gpu.words()}")
    return _amd(gpu, machine.amd_driver)


def _cpu(reason: str) -> ContainerImage:
    return _made(_PLAIN, "cpu", f"TORCH_INDEX={WHEELS}/cpu", "", reason, "https://hub.docker.com/_/python")


def _made(base: str, dockerfile: str, argument: str, flags: str, reason: str, source: str) -> ContainerImage:
    build = f"docker build -f docker/{dockerfile}.Dockerfile --build-arg {argument} -t holdfast ."
    run = " ".join(f'docker run --rm -it --init {flags} -v "$PWD:/work" holdfast train my-run.yaml'.split())
    return ContainerImage(base, build, run, reason, source)


def _nvidia(gpu: Gpu, driver: str | None) -> ContainerImage:
    for row in reversed(table("cuda_wheels")["wheels"]):
        for cuda in reversed(row["cuda"]):
            archs = cuda_archs(row["torch"], cuda) or ()
            if within(row["torch"], _IMAGES) and (driver is None or cuda_served(cuda, driver)) and has_code(gpu.arch or "", archs):
                base = f"pytorch/pytorch:{row['torch']}.0-cuda{cuda}-cudnn9-runtime"
                why = f"the driver {driver} serves CUDA {cuda}" if driver else f"the driver is not known; CUDA {cuda} may need a newer one"
                reason = f"torch {row['torch']} for CUDA {cuda} has code for {gpu.words()}, and {why}"
                return _made(base, "cuda", f"BASE={base}", "--gpus all --shm-size 8g", reason, _HUB)
    return _cpu(f"no official image serves {gpu.words()} with the driver {driver or '(unknown)'}")


def _amd(gpu: Gpu, driver: str | None) -> ContainerImage:
    """Choose the image for an AMD card: wheels bring all of ROCm's libraries, so any Python image does; the kernel driver is the host's."""
    arch = gpu.arch or ""
    known = row_of("drivers", "amd", driver=driver)
    for wheel in reversed(rocm_wheels()):
        served = known is None or ".".join(map(str, release(wheel["rocm"]))) in known["user_space"]
        compiled = arch in wheel["archs"] and arch not in wheel.get("without_blas", ())
        if not (compiled or runs_as_sibling(arch, wheel["archs"])) or not within(wheel["torch"], ">=2.4") or not served:
            continue
        if wheel["sure"] == "low":
            continue
        flags, words = f"{AMD_DEVICES} --shm-size 8g", ""
        if not compiled and (other := sibling(arch)):
            flags, words = f"{flags} -e HSA_OVERRIDE_GFX_VERSION={other['override']}", f", run as {other['runs_as']}"
        host = f"the driver {driver} serves it" if known else "whether the host's driver serves it is not known"
        made = f"the wheel of torch {wheel['torch']} for ROCm {wheel['rocm']} has all libraries and code for {gpu.words()}{words}"
        return _made(_PLAIN, "cpu", f"TORCH_INDEX={WHEELS}/rocm{wheel['rocm']}", flags, f"{made}; {host}", _USER_SPACE)
    return _cpu(f"no official wheel serves {gpu.words()} with the driver {driver or '(unknown)'}")
