"""The system's ROCm can be called, and comes from one set of package sources."""

import re
from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if machine.rocm and machine.tools.get("rocminfo") == "missing" and machine.tools.get("amd-smi") == "missing":
        yield info(f"ROCm {machine.rocm} is installed, but its programs are not on PATH", 'export PATH="$PATH:/opt/rocm/bin"')
    for kind in ("rocm", "amdgpu"):
        sources = [source for source in machine.repositories or () if source.startswith(f"{kind}/")]
        versions = sorted({found.group() for source in sources if (found := re.search(r"\d+(\.\d+)+", source))})
        if len(versions) > 1:
            fix = "keep one of them in /etc/apt/sources.list.d (or /etc/yum.repos.d), then update the package lists"
            yield warn(f"package sources of several {kind} versions are active: {', '.join(versions)}: updates mix them", fix)


CARD = Check(
    title="The system's ROCm installation",
    why=(
        "Installing over an older release leaves its package source behind, and the next update mixes both. A "
        "ROCm that is not on PATH looks like none."
    ),
    source=["https://github.com/ROCm/rocm-cli/blob/main/skills/rocm-doctor/reference.md"],
    hits=[
        {"rocm": {"version": "6.4.1"}, "tools": {"rocminfo": "missing", "amd-smi": "missing"}},
        {"rocm": {"repositories": ["rocm/apt/6.2", "rocm/apt/6.4.1"]}},
    ],
    misses=[
        {"rocm": {"version": "6.4.1"}, "tools": {"rocminfo": "ok", "amd-smi": "missing"}},
        {"rocm": {"repositories": ["rocm/apt/6.4", "amdgpu/6.3/ubuntu"]}},
        {"rocm": {"version": None}, "tools": {"rocminfo": "missing", "amd-smi": "missing"}},
    ],
    look=look,
)
