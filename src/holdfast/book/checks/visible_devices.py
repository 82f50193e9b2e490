"""The variables that choose GPUs agree with each other and leave one."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    env, torch = case.machine.env, case.machine.torch
    amd = bool(torch and torch.vendor == "amd")
    hip, cuda, rocr = (env.get(f"{kind}_VISIBLE_DEVICES") for kind in ("HIP", "CUDA", "ROCR"))
    if amd and hip and cuda and hip != cuda:
        message = (
            f"HIP_VISIBLE_DEVICES={hip} and CUDA_VISIBLE_DEVICES={cuda}: HIP takes the first and ignores the second, "
            "other programs do the opposite"
        )
        yield warn(message, "keep HIP_VISIBLE_DEVICES only: unset CUDA_VISIBLE_DEVICES", _CLR)
    if (
        amd
        and hip
        and rocr is not None
        and len(hip.split(",")) > len(rocr.split(","))
        and within(torch.version if torch else None, ">=2.6")
    ):
        message = f"HIP_VISIBLE_DEVICES={hip} names more GPUs than ROCR_VISIBLE_DEVICES={rocr} leaves: torch 2.6 and newer raises an error"
        yield block(message, "unset HIP_VISIBLE_DEVICES; its numbers count what ROCR_VISIBLE_DEVICES left", _TORCH)
    if torch and torch.vendor and case.candidates and not case.visible:
        names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if amd else ("CUDA_VISIBLE_DEVICES",)
        told = ", ".join(f"{name}={env[name]}" for name in names if name in env)
        message = f"{told} hides every one of the {len(case.candidates)} GPUs: training runs on the CPU"
        yield warn(message, f"unset {' '.join(name for name in names if name in env)}, or number them from 0")


_CLR = "https://github.com/ROCm/clr/blob/rocm-6.4.3/rocclr/device/rocm/rocdevice.cpp"
_TORCH = "https://github.com/pytorch/pytorch/blob/v2.9.1/torch/cuda/__init__.py"
CARD = Check(
    title="The variables that choose GPUs",
    why=(
        "ROCR_VISIBLE_DEVICES filters below HIP, HIP_VISIBLE_DEVICES counts what is left, and "
        "CUDA_VISIBLE_DEVICES is its stand-in. Contradictions hide cards or raise errors."
    ),
    source=["https://rocm.docs.amd.com/en/docs-6.1.2/conceptual/gpu-isolation.html"],
    hits=[
        {
            "torch": {"version": "2.9.1+rocm6.4"},
            "gpus": [{"arch": "gfx1100"}, {"arch": "gfx1100"}],
            "env": {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"},
        },
        {"torch": {"version": "2.9.1+rocm6.4"}, "env": {"HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "1"}},
        {"torch": {"version": "2.9.1+cu128"}, "gpus": [{"arch": "sm_90"}], "env": {"CUDA_VISIBLE_DEVICES": "3"}},
    ],
    misses=[
        {
            "torch": {"version": "2.9.1+rocm6.4"},
            "gpus": [{"arch": "gfx1100"}],
            "env": {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"},
        },
        {
            "torch": {"version": "2.9.1+cu128"},
            "gpus": [{"arch": "sm_90"}],
            "env": {"CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"},
        },
        {"torch": {"version": "2.13.0+cpu"}, "gpus": [{"arch": "sm_90"}], "env": {"CUDA_VISIBLE_DEVICES": "7"}},
    ],
    look=look,
)
