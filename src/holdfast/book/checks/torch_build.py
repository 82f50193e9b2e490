"""Torch was built for the GPU that is there."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, warn
from holdfast.book.knowledge import wheel_advice
from holdfast.run.types import Finding

_BUILDS = {"cpu": "the CPU", "cuda": "CUDA", "rocm": "ROCm"}


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    cards = [gpu for gpu in case.machine.gpus if (gpu.arch or gpu.vendor == "nvidia") and not gpu.integrated]
    if torch is None or torch.backend is None or not cards or any(gpu.vendor == torch.vendor for gpu in case.machine.gpus):
        return
    gpu = cards[0]
    keep = (
        "your torch is not touched by this: it belongs into a new virtual environment" if gpu.vendor == "amd" else "into this environment"
    )
    fix = (
        f"install {wheel_advice(gpu.arch or ('gfx' if gpu.vendor == 'amd' else 'sm_80'))}, {keep}"
        if gpu.arch
        else "install a torch built for it"
    )
    yield warn(f"torch {torch.version} is built for {_BUILDS[torch.backend]}: it trains on the CPU and leaves {gpu.words()} idle", fix)


CARD = Check(
    title="Torch is built for another device than the GPU",
    why=(
        "A CPU wheel has no GPU code, a CUDA wheel none for AMD and the other way round. Nothing fails: "
        "everything silently runs on the CPU."
    ),
    source=["https://github.com/unslothai/unsloth/issues/8731"],
    hits=[
        {"torch": {"version": "2.10.0+cpu"}, "gpus": [{"vendor": "amd", "arch": "gfx1201"}]},
        {"torch": {"version": "2.13.0+cu130"}, "gpus": [{"vendor": "amd", "arch": "gfx1100"}]},
    ],
    misses=[
        {"torch": {"version": "2.10.0+rocm7.1"}, "gpus": [{"vendor": "amd", "arch": "gfx1201"}]},
        {"torch": {"version": "2.10.0+cpu"}, "gpus": [{"vendor": "amd", "arch": "gfx1036", "integrated": True}]},
        {"torch": {"version": "2.10.0+cpu"}, "gpus": []},
    ],
    look=look,
)
