"""The card on the bus has the driver that computes."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, warn
from holdfast.run.types import Finding

_DRIVERS = {"amd": "amdgpu", "nvidia": "nvidia"}
_WHY = {"none": "no driver", "vfio-pci": "vfio-pci, which hands it to a virtual machine", "nouveau": "nouveau, which cannot compute"}


def look(case: Case) -> Iterator[Finding]:
    for name in case.machine.blacklisted or ():
        if any(_DRIVERS.get(gpu.vendor or "") == name for gpu in case.machine.gpus):
            fix = f"grep -rn 'blacklist {name}' /etc/modprobe.d, remove the line, sudo update-initramfs -u, reboot"
            yield warn(f"the driver {name} is blacklisted, so it is not loaded by itself", fix)
    for gpu in case.machine.gpus:
        wanted = _DRIVERS.get(gpu.vendor or "")
        if wanted and gpu.driver and gpu.driver != wanted and not gpu.driver[0].isdigit():
            fix = (
                f"install the {wanted} driver, then: sudo modprobe {wanted} (a blacklist in /etc/modprobe.d or Secure Boot "
                "may hold it back)"
            )
            yield warn(f"{gpu.words()} is held by {_WHY.get(gpu.driver, gpu.driver)}, not by {wanted}: no program can compute on it", fix)


CARD = Check(
    title="The GPU has no driver that computes",
    why=(
        "A card without amdgpu or nvidia bound to it is on the bus and nowhere else. Blacklists, Secure Boot and "
        "virtual machines are the usual reasons."
    ),
    source=["https://github.com/ROCm/legacy-rocm-build/issues/1850"],
    hits=[
        {"gpus": [{"vendor": "nvidia", "name": "GA102", "driver": "nouveau"}]},
        {"gpus": [{"vendor": "amd", "driver": "none"}]},
        {"gpus": [{"arch": "gfx1100"}], "os": {"blacklisted": ["amdgpu"]}},
    ],
    misses=[
        {"gpus": [{"vendor": "nvidia", "driver": "nvidia"}]},
        {"gpus": [{"vendor": "nvidia", "driver": "550.54.14"}]},
        {"gpus": [{"vendor": "amd"}]},
    ],
    look=look,
)
