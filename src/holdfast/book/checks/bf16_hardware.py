"""The GPU computes bf16 itself."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.machine.facts import Gpu, has_bf16, has_fast_fp16
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    wanted = case.config is not None and case.config.train.precision == "bf16"
    for gpu in case.one_of_each:
        lacks = has_bf16(gpu.arch) is False
        if lacks and wanted:
            yield warn(
                f"{gpu.words()} computes bf16 in software",
                "train.precision=auto, which takes fp16" if _in_fp16(case, gpu) else "train.precision=fp32",
            )
        elif lacks:
            message = (
                f"{gpu.words()} has no bf16 arithmetic, whatever torch.cuda.is_bf16_supported() says (it counts emulation, "
                "and is always true on ROCm)"
            )
            taken = "fp16 with a scaled loss, and fp32 for tiny models" if _in_fp16(case, gpu) else "fp32"
            yield info(message, f"nothing to do: train.precision=auto takes {taken}")


def _in_fp16(case: Case, gpu: Gpu) -> bool:
    """Return whether a run's precision is fp16 on such a card where the config leaves it open (planning/precision.py)."""
    train = case.config.train if case.config else None
    return has_fast_fp16(gpu.arch) and not (train and (train.weights == "bf16" or train.fsdp))


CARD = Check(
    title="bf16 without hardware",
    why=(
        "NVIDIA has bf16 from sm_80 on, AMD from MI100 and RDNA3 on. Torch emulates it elsewhere, slowly, and its own question answers yes."
    ),
    source=["https://github.com/pytorch/pytorch/blob/v2.13.0/torch/cuda/__init__.py"],
    hits=[{"gpus": [{"arch": "sm_75"}]}, {"gpus": [{"arch": "gfx1030"}]}],
    misses=[{"gpus": [{"arch": "sm_80"}]}, {"gpus": [{"arch": "gfx1100"}]}, {"gpus": [{"arch": "sm_"}]}],
    look=look,
)
