"""Torch is a wheel of pytorch.org, which is what our tables describe."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info
from holdfast.book.knowledge import rocm_wheel, rocm_wheels
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    ours = rocm_wheels(torch.version) if torch and torch.backend == "rocm" else []
    if not torch or not ours or "+rocm" not in torch.version or rocm_wheel(torch.version, torch.rocm):
        return
    made = " and ".join(str(wheel["rocm"]) for wheel in ours)
    message = (
        f"torch {torch.version} is no wheel of pytorch.org, which made this release for ROCm {made}: its defaults "
        "may differ from what is known of those"
    )
    yield info(message, "nothing to do, if AMD's or your distribution's build was chosen on purpose")


CARD = Check(
    title="Torch is not an official wheel",
    why=(
        "AMD and distributions build torch with other defaults (BLAS, allocator) and other architectures under "
        "the same number. Rules that go by version hold for pytorch.org's wheels only."
    ),
    source=["https://github.com/ROCm/pytorch/pull/2053"],
    hits=[{"torch": {"version": "2.9.1+rocm7.1"}}, {"torch": {"version": "2.5.1+rocm6.3"}}],
    misses=[
        {"torch": {"version": "2.5.1+rocm6.2"}},
        {"torch": {"version": "2.6.0+rocm6.2.4"}},
        {"torch": {"version": "2.13.0+cu130"}},
        {"torch": {"version": "9.9.0+rocm9"}},
    ],
    look=look,
)
