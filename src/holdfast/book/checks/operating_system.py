"""The operating system is one that training works on."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, info
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    named = f"{machine.system or ''} {machine.distro or ''}".lower()
    if "windows" in named and not machine.wsl:
        yield block("native Windows is not supported", "use WSL 2, which runs what is made for Linux", _WSL)
    elif "darwin" in named or "macos" in named:
        yield info("macOS is not tested; what runs there runs on the CPU", "", _MPS)


_WSL = "https://learn.microsoft.com/windows/wsl/install"
_MPS = "https://pytorch.org/docs/stable/notes/mps.html"
CARD = Check(
    title="The operating system",
    why="holdfast's supervision rests on Linux: process groups, /proc, shared memory. WSL has all of it, native Windows does not.",
    source=[_WSL],
    hits=[
        {"os": {"system": "Windows"}},
        {"os": {"distro": "macOS 15.1"}},
    ],
    misses=[
        {"os": {"system": "Linux", "distro": "Ubuntu 24.04"}},
    ],
    look=look,
)
