"""The Python is one that torch's wheels are made for."""

from collections.abc import Iterator

from holdfast.base.versions import release
from holdfast.book.kinds.check import Case, Check, block, info, warn
from holdfast.book.knowledge import newest_python
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    machine, torch = case.machine, case.machine.torch
    found = release(machine.python or "")
    if not found:
        return
    if found < (3, 10):
        yield block(
            f"Python {machine.python} is older than 3.10, which holdfast needs",
            "make a virtual environment with Python 3.10 to 3.13",
            _OURS,
        )
        return
    known = newest_python(torch) if torch else None
    if not torch or not known or found <= release(known["newest"]) or machine.torch_error or torch.devices is not None:
        if not torch and machine.torch_known and found > _NEWEST:
            yield warn(f"Python {machine.python} is newer than any official torch wheel is made for (3.15)", _VENV, _OURS)
        return
    kind = "ROCm wheels" if torch.backend == "rocm" else "wheels"
    message = f"the official {kind} of torch {torch.version} stop at Python {known['newest']}, this is {machine.python}"
    if torch.backend == "rocm" and "+rocm" in torch.version:
        yield block(f"{message}: this torch belongs to another interpreter or was put together by hand", _VENV, known["source"])
    else:
        yield info(f"{message}: it is somebody else's build", "nothing to do while it imports", known["source"])


_NEWEST = (3, 15)
_VENV = "make a virtual environment with Python 3.12 (python3.12 -m venv .venv) and install torch into it; nothing else has to be removed"
_OURS = "https://github.com/pytorch/pytorch/blob/main/RELEASE.md"
CARD = Check(
    title="No torch wheel is made for this Python",
    why=(
        "A wheel is compiled for one Python version. On a newer one the installer finds none and offers an older "
        "torch, a CPU build or a source build that fails."
    ),
    source=["https://github.com/pytorch/test-infra/pull/6070", _OURS],
    hits=[
        {"python": "3.13.1", "torch": {"version": "2.5.1+rocm6.2"}},
        {"python": "3.9.2"},
        {"python": "3.16.0", "torch": None},
        {"python": "3.15.0", "torch": {"version": "2.13.0+rocm7.2"}},
    ],
    misses=[
        {"python": "3.13.1", "torch": {"version": "2.6.0+rocm6.2.4"}},
        {"python": "3.12.3", "torch": {"version": "2.5.1+rocm6.2"}},
        {"python": "3.13.1", "torch": {"version": "2.5.1+rocm6.2", "devices": []}},
        {"python": "unknown"},
        {"python": "3.15.0", "torch": {"version": "2.14.0+rocm7.2"}},
    ],
    look=look,
)
