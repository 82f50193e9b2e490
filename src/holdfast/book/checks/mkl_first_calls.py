"""The MKL in torch computes the first pass of a process right."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, info
from holdfast.run.types import Finding

_WRONG = ">=2024.2 <2025"


def look(case: Case) -> Iterator[Finding]:
    torch, cpu = case.machine.torch, case.machine.cpu
    if torch and cpu and "intel" in cpu.lower() and within(torch.mkl, _WRONG):
        yield info(
            f"torch {torch.version} has oneMKL {torch.mkl}: on this CPU ({cpu}) the first exp, cos or the like of a process with "
            "several threads may be of low accuracy; holdfast makes these calls in one thread first, other trainers do not",
            "in your own programs call torch.ones(1).exp() before anything else",
        )


CARD = Check(
    title="The first pass of a process may be of low accuracy",
    why=(
        "oneMKL 2024.2, in torch's wheels for x86, finds out at the first call of a vector function which kernels an Intel CPU has, "
        "and a thread that calls one at that moment computes its share, once, with a kernel of low accuracy: values wrong from the "
        "fourth digit on were seen in one fresh process of eight, and are right when computed again. holdfast makes the first calls on "
        "one element in one thread, in its own processes and in those with its callback or guard."
    ),
    source=["https://github.com/pytorch/pytorch/issues/188792", "https://github.com/pytorch/pytorch/pull/188791"],
    hits=[{"torch": {"version": "2.13.0+cpu", "mkl": "2024.2"}, "cpu": {"name": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"}}],
    misses=[
        {"torch": {"version": "2.13.0+cpu", "mkl": "2024.2"}, "cpu": {"name": "AMD EPYC 9004"}},
        {"torch": {"version": "2.13.0+cpu", "mkl": "2025.0"}, "cpu": {"name": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"}},
        {"torch": {"version": "2.13.0"}, "cpu": {"name": "Apple M3"}},
        {"torch": {"version": "2.13.0+cpu", "mkl": "2024.2"}},
    ],
    look=look,
)
