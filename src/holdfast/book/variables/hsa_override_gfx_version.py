"""HSA_OVERRIDE_GFX_VERSION lets a card run its sibling's code. Judging a value that is set is checks/gfx_override.py's job."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case
from holdfast.book.kinds.variable import Variable, VariableAdvice
from holdfast.book.knowledge import has_code, known_archs, sibling

_NAME = "HSA_OVERRIDE_GFX_VERSION"


def advise(case: Case) -> Iterator[VariableAdvice]:
    """Propose the override for one kind of card without own code whose sibling has code: it applies to every GPU of the process."""
    torch = case.machine.torch
    archs = known_archs(torch)[0] if torch and torch.vendor == "amd" else None
    kinds = {gpu.arch for gpu in case.cards if gpu.arch}
    if not archs or len(kinds) != 1:
        return
    arch = kinds.pop() or ""
    other = sibling(arch)
    if other and other["runs_as"] in archs and not has_code(arch, archs):
        reason = f"torch has no code for {arch}; {other['runs_as']} is its sibling"
        yield VariableAdvice(_NAME, other["override"], reason, other["standing"], other["source"])


CARD = Variable(
    name=_NAME,
    title="HSA_OVERRIDE_GFX_VERSION as advice",
    reads="libhsakmt, for every GPU of the process",
    backend="rocm",
    does=(
        "It changes the architecture that is reported, not the one that computes. From ROCm 6.2 on "
        "HSA_OVERRIDE_GFX_VERSION_<node> does so for one GPU."
    ),
    why="gfx1031 to gfx1036 have the instruction set of gfx1030, so its code runs on them. For other pairs that is hearsay.",
    source=["https://github.com/ROCm/rocBLAS/issues/1339"],
    hits=[{"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1031"}]}],
    misses=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1030"}]},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx906"}]},
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1031"}, {"arch": "gfx1032"}]},
    ],
    advise=advise,
)
