"""ROCR_VISIBLE_DEVICES hides integrated GPUs."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case
from holdfast.book.kinds.variable import Variable, VariableAdvice

_CHOICES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def advise(case: Case) -> Iterator[VariableAdvice]:
    """Propose the discrete cards, unless the user has chosen already: these numbers would shift what that choice means."""
    torch, cards = case.machine.torch, case.machine.of("amd")
    discrete = [str(index) for index, gpu in enumerate(cards) if not gpu.integrated]
    if torch and torch.vendor == "amd" and 0 < len(discrete) < len(cards) and not any(name in case.machine.env for name in _CHOICES):
        reason = "hides the integrated GPU, which makes torch drop hipBLASLt and may be the default device"
        yield VariableAdvice(
            "ROCR_VISIBLE_DEVICES", ",".join(discrete), reason, "confirmed", "https://github.com/ROCm/legacy-rocm-build/issues/4437"
        )


CARD = Variable(
    name="ROCR_VISIBLE_DEVICES",
    title="ROCR_VISIBLE_DEVICES",
    reads="ROCR, below HIP; torch looks at it since 2.6",
    backend="rocm",
    does="Hidden GPUs are not initialised at all. Numbers or UUIDs are taken, and an empty value hides everything.",
    why="Torch looks at every visible GPU when it chooses its BLAS library. Choosing cuda:1 later does not undo that.",
    source=["https://github.com/ROCm/legacy-rocm-build/issues/4437"],
    hits=[{"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1036", "integrated": True}, {"arch": "gfx1100"}]}],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1151", "integrated": True}]},
        {
            "torch": {"version": "2.9.1+rocm6.4"},
            "gpus": [{"arch": "gfx1036", "integrated": True}, {"arch": "gfx1100"}],
            "env": {"HIP_VISIBLE_DEVICES": "1"},
        },
    ],
    advise=advise,
)
