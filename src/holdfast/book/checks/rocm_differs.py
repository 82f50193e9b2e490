"""The ROCm in /opt and the one torch brings along: they need not agree, but must not be mixed."""

from collections.abc import Iterator

from holdfast.base.versions import release
from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    torch, system = case.machine.torch, case.machine.rocm
    if torch is None or torch.vendor != "amd" or not system or not torch.rocm:
        return
    path = case.machine.env.get("LD_LIBRARY_PATH", "")
    if "rocm" in path:
        message = f"LD_LIBRARY_PATH={path} puts the system's ROCm {system} before the {torch.rocm} that torch {torch.version} brings along"
        yield warn(message, "unset LD_LIBRARY_PATH, then try again before installing anything", standing="reported")
    elif release(system) != release(torch.rocm):
        message = (
            f"torch was built for ROCm {torch.rocm}, the system has {system}: no fault in itself, a wheel loads its "
            "own ROCm libraries, not those in /opt"
        )
        fix = "compare torch's ROCm with the amdgpu driver, not with /opt; only extensions you compile yourself need both to agree"
        yield info(message, fix, _OWN)


_OWN = "https://github.com/ROCm/pytorch/issues/1340"
CARD = Check(
    title="The system's ROCm is another version than torch's",
    why=(
        "Wheels bring HIP, rocBLAS and RCCL along, so /opt/rocm matters little to them. It does when "
        "LD_LIBRARY_PATH puts its libraries first, or when an extension is compiled against it."
    ),
    source=["https://github.com/ROCm/pytorch/issues/1340", "https://github.com/amd/skills/blob/main/skills/rocm-doctor/reference.md"],
    hits=[
        {"torch": {"version": "2.10.0+rocm7.11"}, "rocm": {"version": "7.12.0"}},
        {"torch": {"version": "2.5.1+rocm6.2"}, "rocm": {"version": "6.2.0"}, "env": {"LD_LIBRARY_PATH": "/opt/rocm/lib"}},
    ],
    misses=[
        {"torch": {"version": "2.5.1+rocm6.2"}, "rocm": {"version": "6.2.4"}},
        {"torch": {"version": "2.5.1+rocm6.2"}, "rocm": {"version": None}},
    ],
    look=look,
)
