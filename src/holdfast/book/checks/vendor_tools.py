"""The vendors' tools answer. holdfast needs none of them; one that hangs or fails tells about the driver."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, info, warn
from holdfast.run.types import Finding

_VENDOR = {"nvidia-smi": "nvidia", "rocminfo": "amd", "amd-smi": "amd", "rocm-smi": "amd"}


def look(case: Case) -> Iterator[Finding]:
    for name, state in case.machine.tools.items():
        if name.startswith("import "):
            continue  # a library: the card management-library
        if state == "hanging":
            fix = "end what uses the GPU; if that does not help, reboot: a process waits in the driver and nothing can end it"
            yield warn(f"{name} hangs, so the driver does: training would too", fix)
        elif state == "rubbish":
            yield info(
                f"{name} prints something that is not its usual output; its facts were left out", f"run {name} by hand and look at it"
            )
        elif state.startswith("failed") and any(gpu.vendor == _VENDOR.get(name) for gpu in case.machine.gpus):
            yield info(f"{name} {state}", f"run {name} by hand: its message often names the driver's trouble")


CARD = Check(
    title="A vendor's tool does not answer",
    why=(
        "rocminfo and nvidia-smi open the device as torch does. When one hangs, a process sits in the kernel "
        "driver, and starting another only adds to it."
    ),
    source=["https://github.com/ROCm/legacy-rocm-build/issues/3072"],
    hits=[
        {"tools": {"rocminfo": "hanging"}},
        {"tools": {"nvidia-smi": "rubbish"}},
        {"tools": {"nvidia-smi": "failed: exit code 9, NVIDIA-SMI has failed"}, "gpus": [{"vendor": "nvidia"}]},
    ],
    misses=[
        {"tools": {"import pynvml": "hanging"}},
        {"tools": {"rocminfo": "missing", "nvidia-smi": "ok"}},
        {"tools": {"nvidia-smi": "failed: exit code 9"}},
    ],
    look=look,
)
