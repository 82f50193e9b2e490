"""HSA_OVERRIDE_GFX_VERSION claims an architecture that the GPU can pass for."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, info, warn
from holdfast.book.knowledge import family, has_code, known_archs, sibling, target_of, wheel_advice
from holdfast.machine.facts import Gpu
from holdfast.run.types import Finding

_NAME = "HSA_OVERRIDE_GFX_VERSION"
_UNSET = f"unset {_NAME} (and remove it from your shell's start-up files)"


def look(case: Case) -> Iterator[Finding]:
    value = case.machine.env.get(_NAME)
    if value is None or (case.machine.torch and case.machine.torch.vendor == "nvidia"):
        return
    target = target_of(value)
    if target is None:
        yield block(
            f"{_NAME}={value} is malformed: the driver library then refuses to load the GPU",
            f"{_NAME} takes three decimal numbers: 10.3.0",
            _FORMAT,
        )
        return
    cards = {gpu.arch: gpu for gpu in case.candidates if gpu.arch and gpu.vendor == "amd"}
    for gpu in cards.values():
        yield from _one(case, gpu, value, target)
    if len(cards) > 1:
        message = f"{_NAME}={value} is applied to all of {', '.join(sorted(filter(None, cards)))}"
        yield warn(
            message, f"hide the other GPUs with ROCR_VISIBLE_DEVICES, or from ROCm 6.2 on give one node its own: {_NAME}_1={value}", _NODES
        )


def _one(case: Case, gpu: Gpu, value: str, target: str) -> Iterator[Finding]:
    other = sibling(gpu.arch or "")
    archs = known_archs(case.machine.torch)[0] if case.machine.torch else None
    if gpu.arch == target:
        yield info(f"{_NAME}={value} changes nothing: {gpu.words()} is {target} already", _UNSET, _NO_OP, "refuted")
    elif family(gpu.arch or "") != family(target):
        message = (
            f"{_NAME}={value} makes {gpu.words()} pass for {target}, which has another instruction set: kernels fault or give wrong numbers"
        )
        yield block(message, _UNSET)
    elif gpu.arch and archs and has_code(gpu.arch, archs):
        yield warn(f"{_NAME}={value} hides that torch has code for {gpu.words()} itself", _UNSET, _NATIVE, "reported")
    elif other and other["runs_as"] == target:
        sure = "its instruction set is the same" if other["standing"] == "confirmed" else "some run with it, some do not"
        yield info(
            f"{_NAME}={value} lets {gpu.words()} run code for {target}: {sure}; AMD does not support it",
            "",
            other["source"],
            other["standing"],
        )
    else:
        message = f"{_NAME}={value} makes {gpu.words()} pass for {target}, which nobody is known to have made work reliably"
        yield warn(message, f"{_UNSET}, and install {wheel_advice(gpu.arch or '')}", _NATIVE, "reported")


_FORMAT = "https://github.com/ROCm/ROCR-Runtime/blob/rocm-6.4.3/libhsakmt/src/topology.c"
_NODES = "https://github.com/ROCm/legacy-rocm-build/issues/5069"
_NO_OP = "https://github.com/ROCm/legacy-rocm-build/issues/3065"
_NATIVE = "https://github.com/ROCm/legacy-rocm-build/issues/5824"
CARD = Check(
    title="HSA_OVERRIDE_GFX_VERSION",
    why=(
        "The driver library reports the claimed architecture for every GPU, and programs then run its machine "
        "code. That works between siblings of one instruction set only."
    ),
    source=["https://github.com/AUTOMATIC1111/stable-diffusion-webui/issues/9283", "https://github.com/ROCm/rocBLAS/issues/1339"],
    hits=[
        {"gpus": [{"arch": "gfx906"}], "env": {_NAME: "10.3.0"}},
        {"gpus": [{"arch": "gfx1100"}], "env": {_NAME: "11.0.0"}},
        {"gpus": [{"arch": "gfx1100"}], "env": {_NAME: "gfx1100"}},
        {"gpus": [{"arch": "gfx1151"}], "torch": {"version": "2.10.0+rocm7.1"}, "env": {_NAME: "11.0.0"}},
        {"gpus": [{"arch": "gfx1012"}], "env": {_NAME: "10.3.0"}},
        {"gpus": [{"arch": "gfx1031"}, {"arch": "gfx1036"}], "env": {_NAME: "10.3.0"}},
    ],
    misses=[{"gpus": [{"arch": "gfx906"}]}, {"torch": {"version": "2.9.0+cu128"}, "gpus": [{"arch": "sm_90"}], "env": {_NAME: "10.3.0"}}],
    look=look,
)
