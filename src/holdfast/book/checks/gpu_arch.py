"""Torch has code for the GPU."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.book.knowledge import claimed_for, has_code, known_archs, runs_as_sibling, sibling, wheel_advice
from holdfast.machine.facts import Gpu
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    if torch is None or torch.vendor is None:
        return
    archs, source = known_archs(torch)
    cards = [gpu for gpu in case.cards if gpu.arch]
    if not archs or not cards:
        return
    lacking = [gpu for gpu in cards if not has_code(claimed_for(gpu, case.machine.env), archs)]
    listed = f"the official wheel of this name has {', '.join(archs)}" if source else f"it has {', '.join(archs)}"
    for gpu in {gpu.arch: gpu for gpu in lacking}.values():
        message = f"torch {torch.version} has no code for {gpu.words()}: {listed}"
        if len(lacking) < len(cards):
            usable = next(index for index, card in enumerate(case.candidates) if card in cards and card not in lacking)
            # CUDA counts the fastest first unless told to count as nvidia-smi does
            name = "ROCR_VISIBLE_DEVICES" if gpu.vendor == "amd" else "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES"
            yield warn(message, f"export {name}={usable}", source)
        elif runs_as_sibling(gpu.arch or "", archs):
            told = f"{message}. `holdfast train` runs it as its sibling by itself; other programs need the variable"
            yield warn(told, _fix(gpu, archs), source)
        else:
            yield block(message, _fix(gpu, archs), source)


def _fix(gpu: Gpu, archs: tuple[str, ...]) -> str:
    other = sibling(gpu.arch or "")
    if other and other["runs_as"] in archs:
        sure = "the same instruction set" if other["standing"] == "confirmed" else "reported to work, not certain"
        return f"export HSA_OVERRIDE_GFX_VERSION={other['override']} ({other['runs_as']}: {sure}), or {wheel_advice(gpu.arch or '')}"
    return f"install {wheel_advice(gpu.arch or '')}"


CARD = Check(
    title="Torch has no code for the GPU",
    why=(
        "A wheel holds compiled kernels for a list of architectures. On any other the first kernel fails: "
        "'invalid device function', 'no kernel image is available'."
    ),
    source=["https://github.com/pytorch/pytorch/issues/132570", "https://github.com/pytorch/pytorch/issues/172352"],
    hits=[
        {"torch": {"version": "2.5.1+rocm6.2"}, "gpus": [{"arch": "gfx1201"}]},
        {"torch": {"version": "2.9.0+rocm6.4", "arch_list": ["gfx1030"]}, "gpus": [{"arch": "gfx1031"}]},
        {"torch": {"version": "2.13.0+cu130", "cuda": "13.0"}, "gpus": [{"arch": "sm_61"}]},
        {"torch": {"version": "2.5.1+cu124", "arch_list": ["sm_80", "sm_90"]}, "gpus": [{"arch": "sm_120"}]},
    ],
    misses=[
        {"torch": {"version": "2.5.1+rocm6.2"}, "gpus": [{"arch": "gfx1100"}]},
        {"torch": {"version": "2.5.1+rocm6.2"}, "gpus": [{"arch": "gfx1031"}], "env": {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}},
        {"torch": {"version": "2.8.0+cu128", "arch_list": ["sm_80"]}, "gpus": [{"arch": "sm_86"}]},
        {"torch": {"version": "2.9.0+cu130", "arch_list": ["sm_80", "compute_90"]}, "gpus": [{"arch": "sm_120"}]},
        {"torch": {"version": "2.13.0+cpu"}, "gpus": [{"arch": "gfx1201"}]},
    ],
    look=look,
)
