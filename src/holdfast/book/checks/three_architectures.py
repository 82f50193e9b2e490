"""ROCm 6.0 with three architectures in one machine."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    archs = sorted({gpu.arch for gpu in case.visible if gpu.vendor == "amd" and gpu.arch})
    if torch and len(archs) > 2 and within(torch.rocm, "==6.0"):
        yield warn(
            f"{', '.join(archs)} are visible together: ROCm 6.0 crashes with three architectures (6.1 does not)",
            "export ROCR_VISIBLE_DEVICES=0 (or the cards of one kind)",
        )


CARD = Check(
    title="Three GPU architectures under ROCm 6.0",
    why="ROCm 6.0 ends in a segmentation fault when three GPU architectures are visible, in plain rocBLAS too. It was fixed in 6.1.",
    source=["https://github.com/ROCm/legacy-rocm-build/issues/2874"],
    hits=[{"torch": {"version": "2.4.1+rocm6.0"}, "gpus": [{"arch": "gfx908"}, {"arch": "gfx906"}, {"arch": "gfx1030"}]}],
    misses=[{"torch": {"version": "2.4.1+rocm6.1"}, "gpus": [{"arch": "gfx908"}, {"arch": "gfx906"}, {"arch": "gfx1030"}]}],
    look=look,
)
