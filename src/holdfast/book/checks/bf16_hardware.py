"""The GPU computes bf16 itself."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.machine.facts import has_bf16
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    wanted = case.config is not None and case.config.train.precision == "bf16"
    for gpu in case.one_of_each:
        lacks = has_bf16(gpu.arch) is False
        if lacks and wanted:
            yield warn(f"{gpu.words()} computes bf16 in software", "train.precision=fp32")
        elif lacks:
            message = (
                f"{gpu.words()} has no bf16 arithmetic, whatever torch.cuda.is_bf16_supported() says (it counts emulation, "
                "and is always true on ROCm)"
            )
            yield info(message, "nothing to do: train.precision=auto takes fp32")


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
