"""Several AMD cards can talk to each other."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    machine, torch = case.machine, case.machine.torch
    cards = [gpu for gpu in case.visible if gpu.vendor == "amd" and not gpu.integrated]
    if len(cards) < 2 or machine.wsl or (torch and torch.vendor != "amd"):
        return
    line = machine.kernel_command_line
    if line is not None and "iommu=pt" not in line.split():
        fix = "add iommu=pt to the kernel's command line (GRUB_CMDLINE_LINUX), sudo update-grub, reboot"
        yield warn(f"{len(cards)} AMD cards without iommu=pt on the kernel's command line: collectives hang on some boards", fix)
    if machine.numa_balancing:
        yield info("NUMA balancing is on, which RCCL warns about for several GPUs", "sudo sysctl kernel.numa_balancing=0", _RCCL)


_RCCL = "https://github.com/ROCm/rccl/blob/develop/src/init.cc"
CARD = Check(
    title="Several AMD cards and the IOMMU",
    why=(
        "Peer copies through a translating IOMMU stall on many boards, which ends as a hang in the first "
        "collective. Passing addresses through (iommu=pt) cured it on MI100 and is what RCCL asks for."
    ),
    source=["https://github.com/ROCm/rccl/issues/1129"],
    hits=[{"gpus": [{"arch": "gfx1100"}, {"arch": "gfx1100"}], "os": {"command_line": "quiet"}}],
    misses=[
        {"gpus": [{"arch": "gfx1100"}, {"arch": "gfx1100"}], "os": {"command_line": "quiet iommu=pt"}},
        {"gpus": [{"arch": "gfx1100"}, {"arch": "gfx1100"}]},
        {"gpus": [{"arch": "gfx1100"}], "os": {"command_line": "quiet"}},
    ],
    look=look,
)
