"""The device files of the GPU exist and may be opened."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.book.knowledge import AMD_DEVICES
from holdfast.machine.facts import Node
from holdfast.run.types import Finding

_CONTAINER = f"start the container with: {AMD_DEVICES} (rootless podman also: --userns=keep-id)"
_GROUPS = 'sudo usermod -aG render,video "$USER", then log out and in again'


def look(case: Case) -> Iterator[Finding]:
    machine = case.machine
    torch, cards = machine.torch, machine.of("amd")
    if torch is not None and torch.backend == "cpu":  # it leaves cards idle, which torch-build tells of those that are worth it
        cards = tuple(gpu for gpu in cards if not gpu.integrated)
    amd = bool(cards) and (torch is None or torch.vendor != "nvidia")
    if amd and not machine.wsl:
        yield from _amd(case, machine.devices.get("/dev/kfd", Node()))
    nvidia = {name: node for name, node in machine.devices.items() if name.startswith("/dev/nvidia")}
    missing = nvidia.get("/dev/nvidiactl", Node()).exists is False and not any(node.exists for node in nvidia.values())
    wanted = bool(machine.of("nvidia")) and (torch is None or torch.vendor == "nvidia")  # any other torch trains without them
    if missing and wanted and not machine.wsl:
        fix = "start the container with: --gpus all" if machine.container else "sudo modprobe nvidia nvidia-uvm; then: nvidia-smi"
        yield block("/dev/nvidiactl is not there, so no CUDA program can use the GPU", fix, _NVIDIA)
    shut = [name for name, node in nvidia.items() if node.exists and node.readable is False]
    if shut and wanted:
        yield block(f"{', '.join(shut)} may not be opened by this user", "ls -l /dev/nvidia*; in a container: --gpus all", _NVIDIA)


def _amd(case: Case, kfd: Node) -> Iterator[Finding]:
    container, torch = case.machine.container, case.machine.torch
    serious = block if torch is not None and torch.vendor == "amd" else warn
    if kfd.exists is False:
        fix = _CONTAINER if container else "sudo modprobe amdgpu; if it is not loaded: dmesg | grep -i -e amdgpu -e kfd"
        yield serious("/dev/kfd is not there, so no ROCm program can use the GPU", fix, _MISSING)
    elif kfd.readable is False:
        groups = case.machine.groups or ()
        lacking = [name for name in ("render", "video") if case.machine.groups is not None and name not in groups]
        member = f"; you are not in the group{'s' if len(lacking) > 1 else ''} {' and '.join(lacking)}" if lacking else ""
        yield serious(f"/dev/kfd may not be opened by this user{member}", _CONTAINER if container else _GROUPS)
    renders = {name: node for name, node in case.machine.devices.items() if "renderD" in name}
    if renders and not any(node.readable is not False for node in renders.values()):
        yield serious(f"{', '.join(renders)} may not be opened by this user", _CONTAINER if container else _GROUPS)


_MISSING = "https://github.com/ROCm/legacy-rocm-build/issues/1893"
_NVIDIA = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"
CARD = Check(
    title="The GPU's device files cannot be opened",
    why=(
        "ROCm opens /dev/kfd and a render node, which belong to the groups render and video. Without them "
        "rocminfo speaks of missing resources and torch sees no GPU."
    ),
    source=["https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html"],
    hits=[
        {
            "torch": {"version": "2.9.1+rocm6.4"},
            "gpus": [{"arch": "gfx1100"}],
            "devices": {"/dev/kfd": {"exists": True, "readable": False}},
        },
        {"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"arch": "gfx1100"}], "devices": {"/dev/kfd": {"exists": False}}},
        {
            "gpus": [{"arch": "gfx90a"}],
            "devices": {"/dev/kfd": {"exists": True, "readable": True}, "/dev/dri/renderD128": {"exists": True, "readable": False}},
        },
        {"gpus": [{"arch": "sm_90"}], "devices": {"/dev/nvidiactl": {"exists": False, "readable": False}}, "os": {"container": True}},
        {"gpus": [{"arch": "sm_90"}], "devices": {"/dev/nvidia0": {"exists": True, "readable": False}}},
        {
            "torch": {"version": "2.9.1+cpu"},
            "gpus": [{"arch": "gfx1100"}],
            "devices": {"/dev/kfd": {"exists": True, "readable": False}},
        },
    ],
    misses=[
        {"gpus": [{"arch": "gfx1100"}], "devices": {"/dev/kfd": {"exists": True, "readable": True}}},
        {"gpus": [{"arch": "sm_90"}], "devices": {"/dev/kfd": {"exists": False, "readable": False}}},
        {"gpus": [{"arch": "gfx1100"}], "os": {"wsl": True}, "devices": {"/dev/kfd": {"exists": False}}},
        {
            "torch": {"version": "2.9.1+cpu"},
            "gpus": [{"arch": "gfx1103", "integrated": True}],
            "devices": {"/dev/kfd": {"exists": True, "readable": False}, "/dev/dri/renderD128": {"exists": True, "readable": False}},
        },
        {"torch": {"version": "2.9.1+cpu"}, "gpus": [{"arch": "sm_90"}], "devices": {"/dev/nvidia0": {"exists": True, "readable": False}}},
    ],
    look=look,
)
