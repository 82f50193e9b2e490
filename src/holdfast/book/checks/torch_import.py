"""Torch is there and can be imported."""

from collections.abc import Iterator

from holdfast.base.errors import is_no_memory
from holdfast.book.kinds.check import Case, Check, block
from holdfast.book.knowledge import torch_for
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.torch_error:
        limited = is_no_memory(machine.torch_error)
        remedy = "ulimit -v unlimited, or give this machine more memory" if limited else torch_for(case.cards)
        yield block(f"torch cannot be imported: {machine.torch_error}", remedy)
    elif machine.torch_known and machine.torch is None:
        python = f" for Python {machine.python}" if machine.python else ""
        yield block(f"torch cannot be imported: it is not installed{python}", torch_for(case.cards))


CARD = Check(
    title="Torch is missing or cannot be imported",
    why=(
        "Training needs a torch that imports in this interpreter. Which one, the GPU decides: a plain install "
        "takes CUDA, which an AMD card cannot use."
    ),
    source=["https://pytorch.org/get-started/locally/"],
    hits=[
        {"torch": None, "torch_error": "ImportError: libtorch_cpu.so: failed to map segment from shared object"},
        {"torch": None, "torch_error": "No module named 'torch'"},
        {"torch": None, "python": "3.13.1"},
    ],
    misses=[{"torch": {"version": "2.13.0+cpu"}}, {}],
    look=look,
)
