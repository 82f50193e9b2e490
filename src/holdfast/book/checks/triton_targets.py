"""Triton compiles for the AMD GPU."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info
from holdfast.book.knowledge import row_of, running_as
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch = case.machine.torch
    found = list(case.machine.tritons().items())
    if torch is None or torch.vendor != "amd" or len(found) != 1:
        return  # several of them: triton-packages
    name, installed = found[0]
    row = row_of("architectures", "triton", version=installed)
    for gpu in case.one_of_each if row else ():
        if row and running_as(gpu, case.machine.env) not in row["archs"]:
            message = (
                f"{name} {installed} does not compile for {gpu.words()}: torch.compile and libraries with kernels in Triton end in "
                "'unsupported target'; plain torch and `holdfast train` need none"
            )
            yield info(message, "leave torch.compile out; for libraries that call it: export TORCHDYNAMO_DISABLE=1", row["source"])


CARD = Check(
    title="Triton does not compile for this GPU",
    why=(
        "Triton names the AMD architectures it compiles for. Up to 3.7 it refuses gfx900 and gfx906, 3.8 takes gfx906, and 3.9 refuses "
        "RDNA1 and RDNA2 (each was asked for kernels, without a GPU)."
    ),
    source=["https://github.com/triton-lang/triton/pull/9628", "https://github.com/triton-lang/triton/issues/8992"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx906"}], "packages": {"pytorch-triton-rocm": "3.5.1"}},
        {"torch": {"version": "2.15.0+rocm7.14"}, "gpus": [{"arch": "gfx1030"}], "packages": {"triton": "3.9.0"}},
    ],
    misses=[
        {"torch": {"version": "2.14.0+rocm7.2"}, "gpus": [{"arch": "gfx906"}], "packages": {"triton-rocm": "3.8.0"}},
        {"torch": {"version": "2.13.0+rocm7.2"}, "gpus": [{"arch": "gfx1030"}], "packages": {"triton-rocm": "3.7.1"}},
        {"torch": {"version": "2.9.1+rocm6.3"}, "gpus": [{"arch": "gfx906"}], "packages": {"pytorch-triton-rocm": "9.9"}},
        {"torch": {"version": "2.9.1+cu128"}, "gpus": [{"arch": "sm_60"}], "packages": {"triton": "3.5.1"}},
    ],
    look=look,
)
