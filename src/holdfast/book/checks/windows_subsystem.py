"""Under WSL the GPU comes through /dev/dxg and the Windows driver."""

from collections.abc import Iterator

from holdfast.base.versions import within
from holdfast.book.kinds.check import Case, Check, block, info, warn
from holdfast.machine.facts import Node
from holdfast.run.types import Finding


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    if not machine.wsl:
        return
    if within(machine.kernel, "<5"):
        yield warn(
            f"kernel {machine.kernel} is WSL 1, which has no GPU", "in Windows: wsl --set-version DISTRO 2 and wsl --update", _UPDATE
        )
        return
    wanted = machine.torch is not None and machine.torch.vendor is not None
    if machine.devices.get("/dev/dxg", Node()).exists is False:
        fix = (
            "docker run --device=/dev/dxg -v /usr/lib/wsl:/usr/lib/wsl ..."
            if machine.container
            else "wsl --update, and a current GPU driver in Windows"
        )
        yield (block if wanted else info)("/dev/dxg is not there: no GPU reaches this WSL", fix)
    elif machine.wsl_libraries is not None and not any("dxcore" in path for path in machine.wsl_libraries):
        yield (block if wanted else info)(
            "/usr/lib/wsl/lib/libdxcore.so is missing: the GPU's driver in Windows cannot be reached", "wsl --shutdown, wsl --update"
        )
    elif wanted and machine.torch and machine.torch.vendor == "amd":
        if machine.wsl_libraries is not None and not any("rocdxg" in path for path in machine.wsl_libraries):
            missing = "librocdxg.so was not found: ROCm as AMD now installs it under WSL goes through it (its earlier way did not)"
            fix = "install ROCm for WSL as AMD describes it (github.com/ROCm/librocdxg), then: export HSA_ENABLE_DXG_DETECTION=1"
            yield warn(missing, fix, _AMD, "reported")
        message = (
            "ROCm under WSL goes through /dev/dxg and the Windows driver; there is no /dev/kfd, and rocm-smi cannot work "
            "(amd-smi has a package for WSL)"
        )
        fix = (
            "keep Windows' Radeon driver up to date; librocdxg and the libhsa-runtime64 that is loaded (a wheel has its own) must be "
            "of one ROCm"
        )
        yield info(message, fix, _DXG)


_UPDATE = "https://learn.microsoft.com/windows/wsl/install"
_AMD = "https://rocm.docs.amd.com/projects/radeon-ryzen/en/latest/docs/install/installrad/wsl/howto_wsl.html"
_DXG = "https://rocm.docs.amd.com/projects/rocprofiler-sdk/en/develop/how-to/using-rocprofv3-on-wsl.html"
CARD = Check(
    title="The GPU under WSL",
    why=(
        "WSL 2 passes the GPU through one device and the libraries beside it, which belong to the driver in "
        "Windows. ROCm's own kernel devices do not exist there."
    ),
    source=["https://github.com/ROCm/rocm-cli/blob/main/skills/rocm-doctor/reference.md"],
    hits=[
        {"torch": {"version": "2.9.1+rocm6.4"}, "os": {"wsl": True, "kernel": "6.6.87.2-microsoft"}, "gpus": [{"arch": "gfx1100"}]},
        {"torch": {"version": "2.9.1+cu128"}, "os": {"wsl": True}, "devices": {"/dev/dxg": {"exists": False}}},
        {"torch": {"version": "2.9.1+cu128"}, "os": {"wsl": True, "wsl_libraries": []}},
        {"os": {"wsl": True, "kernel": "4.4.0-19041-Microsoft"}},
    ],
    misses=[
        {
            "torch": {"version": "2.9.1+cu128"},
            "os": {"wsl": True, "wsl_libraries": ["/usr/lib/wsl/lib/libdxcore.so"]},
            "devices": {"/dev/dxg": {"exists": True}},
        },
        {"torch": {"version": "2.9.1+rocm6.4"}, "os": {"wsl": False}},
    ],
    look=look,
)
