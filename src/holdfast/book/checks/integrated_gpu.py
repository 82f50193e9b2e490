"""No integrated GPU stands in the way of the card one trains on."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    if case.machine.torch and case.machine.torch.vendor == "nvidia":
        return
    amd = [gpu for gpu in case.machine.gpus if gpu.vendor == "amd"]
    visible = [gpu for gpu in case.visible if gpu.vendor == "amd"]
    integrated, discrete = [gpu for gpu in visible if gpu.integrated], [gpu for gpu in visible if not gpu.integrated]
    if not (integrated and discrete):
        return
    first = "it comes first, so it is the default device; " if visible[0].integrated else ""
    message = (
        f"{integrated[0].words()}, an integrated GPU, is visible beside {discrete[0].words()}: {first}torch drops "
        "hipBLASLt for all cards, and kernels can fail on it"
    )
    indexes = ",".join(str(index) for index, gpu in enumerate(amd) if not gpu.integrated)
    yield warn(message, f"export ROCR_VISIBLE_DEVICES={indexes} (choosing cuda:1 is not enough)")


CARD = Check(
    title="An integrated GPU is visible beside the card",
    why=(
        "Torch looks at all visible GPUs when it chooses libraries, and the first one is the default device. An "
        "integrated one has other code and borrows main memory."
    ),
    source=["https://github.com/ROCm/legacy-rocm-build/issues/4437", "https://github.com/ROCm/TheRock/issues/5543"],
    hits=[
        {"gpus": [{"arch": "gfx1036", "integrated": True}, {"arch": "gfx1100"}]},
        {"gpus": [{"arch": "gfx1100"}, {"arch": "gfx1103", "integrated": True}], "torch": {"version": "2.9.1+rocm6.4"}},
    ],
    misses=[
        {"gpus": [{"arch": "gfx1036", "integrated": True}, {"arch": "gfx1100"}], "env": {"ROCR_VISIBLE_DEVICES": "1"}},
        {"gpus": [{"arch": "gfx1151", "integrated": True}]},
        {"gpus": [{"arch": "gfx1100"}, {"arch": "gfx1100"}]},
    ],
    look=look,
)
