"""Torch's fused attention runs on this AMD GPU."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.book.knowledge import row_of, running_as
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    row = row_of("architectures", "fused_attention", torch=torch.version) if torch and torch.vendor == "amd" else None
    if not row or not torch or case.machine.env.get("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL") == "1":
        return
    for gpu in case.one_of_each:
        arch = running_as(gpu, case.machine.env)
        if arch in row["experimental"]:
            tell = warn if gpu.arch == "gfx1100" else info
            message = (
                f"torch {torch.version} has fused attention for {gpu.words()} behind a switch; without it attention takes "
                "memory with the square of the length"
            )
            yield tell(message, "export TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1", row["source"])
        elif arch not in row["stable"]:
            message = (
                f"torch {torch.version} has no fused attention for {gpu.words()}: attention takes memory with the square of the length"
            )
            yield info(message, "keep train.max_tokens moderate", row["source"])


CARD = Check(
    title="No fused attention on this AMD GPU",
    why=(
        "Torch's flash and memory-efficient attention on ROCm come from AOTriton, which lists architectures, some "
        "behind a switch. On others the plain formula runs, which is right and hungry."
    ),
    source=[
        "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/testing/_internal/common_cuda.py",
        "https://github.com/ROCm/aotriton/issues/137",
    ],
    hits=[
        {"torch": {"version": "2.10.0+rocm7.1"}, "gpus": [{"arch": "gfx1100"}]},
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx906"}]},
    ],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}]},
        {"torch": {"version": "2.10.0+rocm7.1"}, "gpus": [{"arch": "gfx1100"}], "env": {"TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL": "1"}},
        {"torch": {"version": "2.10.0+cu128"}, "gpus": [{"arch": "sm_90"}]},
    ],
    look=look,
)
