"""Machines as the doctor meets them, made here after public reports: what it must say of each, and what it must not."""

from __future__ import annotations

from typing import Any

PACKAGES = {"transformers": "4.57.6", "peft": "0.18.1", "torchao": None, "amdsmi": None, "bitsandbytes": None, "flash-attn": None}
OPEN = {"/dev/kfd": {"exists": True, "readable": True}, "/dev/dri/renderD128": {"exists": True, "readable": True}}
CARDS: dict[str, tuple[str, float]] = {
    "gfx803": ("Radeon RX 570", 8),
    "gfx900": ("Instinct MI25", 16),
    "gfx906": ("Instinct MI50", 32),
    "gfx908": ("Instinct MI100", 32),
    "gfx90a": ("Instinct MI210", 64),
    "gfx942": ("Instinct MI300X", 192),
    "gfx950": ("Instinct MI355X", 288),
    "gfx1010": ("Radeon RX 5700 XT", 8),
    "gfx1012": ("Radeon RX 5500 XT", 8),
    "gfx1030": ("Radeon RX 6800 XT", 16),
    "gfx1031": ("Radeon RX 6700 XT", 12),
    "gfx1032": ("Radeon RX 6600 XT", 8),
    "gfx1036": ("Radeon Graphics", 0.5),
    "gfx1100": ("Radeon RX 7900 XTX", 24),
    "gfx1101": ("Radeon RX 7800 XT", 16),
    "gfx1102": ("Radeon RX 7600", 8),
    "gfx1103": ("Radeon 780M", 4),
    "gfx1150": ("Radeon 890M", 8),
    "gfx1151": ("Radeon 8060S", 96),
    "gfx1200": ("Radeon RX 9060 XT", 16),
    "gfx1201": ("Radeon RX 9070 XT", 16),
    "sm_50": ("GTX 750 Ti", 2),
    "sm_60": ("Tesla P100", 16),
    "sm_61": ("GTX 1070 Ti", 8),
    "sm_70": ("Tesla V100", 32),
    "sm_75": ("Tesla T4", 16),
    "sm_80": ("A100", 80),
    "sm_86": ("RTX 3090", 24),
    "sm_89": ("RTX 4090", 24),
    "sm_90": ("H200", 141),
    "sm_100": ("B200", 180),
    "sm_120": ("RTX 5090", 32),
}


def machine(torch: str | None, *archs: str, python: str = "3.12.3", **more: Any) -> dict[str, Any]:
    """A machine with this torch and these GPUs; `more` replaces keys, and names of sections in `os`."""
    system = {"kernel": "6.8.0-45-generic", "distro": "Ubuntu 24.04", "system": "Linux", "wsl": False, "container": False}
    system |= {name: more.pop(name) for name in list(more) if name in ("kernel", "wsl", "container", "distro", "command_line", "system")}
    gpus = [_card(arch) for arch in archs]
    facts: dict[str, Any] = {
        "os": system,
        "python": python,
        "memory_bytes": 64 << 30,
        "shm_bytes": 32 << 30,
        "disk_free_bytes": 100 << 30,
        "torch": _torch(torch) if torch else None,
        "gpus": gpus,
        "devices": OPEN if any(arch.startswith("gfx") for arch in archs) else {},
        "packages": PACKAGES | more.pop("packages", {}),
        "env": {},
    }
    return facts | more


def _card(arch: str) -> dict[str, Any]:
    name, gib = CARDS[arch]
    return {"vendor": "amd" if arch.startswith("gfx") else "nvidia", "arch": arch, "name": name, "memory_bytes": int(gib * (1 << 30))}


def _torch(version: str) -> dict[str, Any]:
    local = version.partition("+")[2]
    cuda = f"{local[2:-1]}.{local[-1]}" if local.startswith("cu") else None
    return {"version": version, "hip": f"{local[4:]}.41133" if local.startswith("rocm") else None, "cuda": cuda}


OVERRIDE, HIDE = "HSA_OVERRIDE_GFX_VERSION", "ROCR_VISIBLE_DEVICES"
SHUT = {"/dev/kfd": {"exists": True, "readable": False}, "/dev/dri/renderD128": {"exists": True, "readable": False}}
GONE = {"/dev/kfd": {"exists": False, "readable": False}}
NO_NVIDIA = {"/dev/nvidiactl": {"exists": False, "readable": False}}
SIBLING, IGPU = {OVERRIDE: "10.3.0"}, {HIDE: "1"}

# (name, machine, verdict, ids of everything that blocks or warns, ids that must be among the remarks, confirmed environment)
Row = tuple[str, dict[str, Any], str, set[str], set[str], dict[str, str]]
AMD: list[Row] = [
    ("MI25, dropped kernels", machine("2.9.1+rocm6.4", "gfx900"), "blocked", {"blas-kernels"}, set(), {"TORCHDYNAMO_DISABLE": "1"}),
    ("MI50, last good wheel", machine("2.9.1+rocm6.3", "gfx906"), "ready", set(), {"vega20"}, {"TORCHDYNAMO_DISABLE": "1"}),
    ("MI50, 2.4.1+rocm6.0", machine("2.4.1+rocm6.0", "gfx906"), "ready", set(), {"vega20"}, {"TORCHDYNAMO_DISABLE": "1"}),
    (
        "MI50, 2.5.1+rocm6.2",
        machine("2.5.1+rocm6.2", "gfx906"),
        "ready",
        set(),
        {"vega20", "hipblaslt-fallback"},
        {"TORCHDYNAMO_DISABLE": "1"},
    ),
    (
        "MI50, 2.9.1+rocm7.1",
        machine("2.9.1+rocm7.1", "gfx906"),
        "blocked",
        {"blas-kernels"},
        {"wheel-origin"},
        {"TORCHDYNAMO_DISABLE": "1"},
    ),
    (
        "MI50, override of a forum",
        machine("2.9.1+rocm6.3", "gfx906", env={OVERRIDE: "10.3.0"}),
        "blocked",
        {"gfx-override"},
        set(),
        {"TORCHDYNAMO_DISABLE": "1"},
    ),
    (
        "MI50, 4-bit",
        machine("2.9.1+rocm6.3", "gfx906", packages={"bitsandbytes": "0.50.2"}),
        "risky",
        {"bitsandbytes-rocm"},
        set(),
        {"TORCHDYNAMO_DISABLE": "1"},
    ),
    ("MI100", machine("2.9.1+rocm6.4", "gfx908"), "ready", set(), {"fused-attention"}, {}),
    ("4 x MI100", machine("2.9.1+rocm6.4", *["gfx908"] * 4, command_line="quiet splash"), "risky", {"several-gpus"}, set(), {}),
    (
        "MI100 with old bitsandbytes",
        machine("2.9.1+rocm6.4", "gfx908", packages={"bitsandbytes": "0.49.2"}),
        "risky",
        {"bitsandbytes-rocm"},
        set(),
        {},
    ),
    ("MI210", machine("2.9.1+rocm6.4", "gfx90a"), "ready", set(), set(), {}),
    (
        "MI210, block size 64",
        machine("2.9.1+rocm6.4", "gfx90a", packages={"bitsandbytes": "0.49.0"}),
        "risky",
        {"bitsandbytes-rocm"},
        set(),
        {},
    ),
    ("MI250, ROCm 7.14", machine("2.12.0+rocm7.14", "gfx90a"), "ready", set(), {"mi250-rocm714", "wheel-origin"}, {}),
    ("8 x MI300X", machine("2.11.0+rocm7.2", *["gfx942"] * 8, command_line="iommu=pt"), "ready", set(), set(), {}),
    ("MI300X, torch before it", machine("2.2.2+rocm5.7", "gfx942", python="3.11.9"), "blocked", {"gpu-arch", "torch-version"}, set(), {}),
    ("MI355X", machine("2.11.0+rocm7.2", "gfx950"), "risky", {"gfx950-fp32"}, set(), {}),
    ("MI355X, torch before it", machine("2.9.1+rocm6.4", "gfx950"), "blocked", {"gpu-arch", "gfx950-fp32"}, set(), {}),
    ("RX 570", machine("2.9.1+rocm6.4", "gfx803"), "blocked", {"gpu-arch"}, set(), {}),
    ("RX 5700 XT", machine("2.5.1+rocm6.2", "gfx1010"), "blocked", {"gpu-arch"}, set(), {}),
    ("RX 5500 XT as gfx1030", machine("2.9.1+rocm6.4", "gfx1012", env=SIBLING), "blocked", {"gfx-override"}, set(), {}),
    ("RX 6800 XT", machine("2.9.1+rocm6.4", "gfx1030"), "ready", set(), {"fused-attention", "bf16-hardware"}, {}),
    ("RX 6800 XT, ROCm 7", machine("2.11.0+rocm7.2", "gfx1030"), "ready", set(), {"rdna2-rocm7"}, {}),
    ("RX 6800 XT, its own number", machine("2.9.1+rocm6.4", "gfx1030", env=SIBLING), "ready", set(), {"gfx-override"}, {}),
    ("RX 6700 XT", machine("2.9.1+rocm6.4", "gfx1031"), "risky", {"gpu-arch"}, set(), SIBLING),
    ("RX 6700 XT with the override", machine("2.9.1+rocm6.4", "gfx1031", env=SIBLING), "ready", set(), {"gfx-override"}, {}),
    ("RX 6600 XT", machine("2.9.1+rocm6.4", "gfx1032"), "risky", {"gpu-arch"}, set(), SIBLING),
    ("RX 7900 XTX", machine("2.9.1+rocm6.4", "gfx1100"), "ready", set(), set(), {}),
    ("RX 7900 XTX, 2.5.1+rocm6.2", machine("2.5.1+rocm6.2", "gfx1100"), "ready", set(), {"hipblaslt-fallback", "fused-attention"}, {}),
    ("RX 7900 XTX, 2.10 hides attention", machine("2.10.0+rocm7.1", "gfx1100"), "risky", {"fused-attention"}, set(), {}),
    ("RX 7900 XTX, new kernel", machine("2.9.1+rocm6.4", "gfx1100", kernel="6.18.4-arch1-1"), "risky", {"kernel-rdna3"}, set(), {}),
    ("RX 7900 XTX, iGPU first", machine("2.9.1+rocm6.4", "gfx1036", "gfx1100"), "risky", {"integrated-gpu"}, set(), IGPU),
    ("RX 7900 XTX, iGPU hidden", machine("2.9.1+rocm6.4", "gfx1036", "gfx1100", env=IGPU), "ready", set(), set(), {}),
    ("RX 7900 XTX, no groups", machine("2.9.1+rocm6.4", "gfx1100", devices=SHUT), "blocked", {"device-access"}, set(), {}),
    (
        "RX 7900 XTX, bare container",
        machine("2.9.1+rocm6.4", "gfx1100", devices=GONE, container=True),
        "blocked",
        {"device-access"},
        set(),
        {},
    ),
    ("container without any device", machine("2.9.1+rocm6.4", container=True), "risky", {"no-gpu"}, set(), {}),
    (
        "RX 7900 XTX, docker's shm",
        machine("2.9.1+rocm6.4", "gfx1100", container=True, shm_bytes=64 << 20),
        "risky",
        {"shared-memory"},
        set(),
        {},
    ),
    ("RX 7900 XTX, CUDA torch", machine("2.13.0+cu130", "gfx1100"), "risky", {"torch-build"}, set(), {}),
    ("RX 7900 XTX, driver far behind", machine("2.11.0+rocm7.2", "gfx1100", rocm={"driver": "6.7.0"}), "risky", {"amd-driver"}, set(), {}),
    ("RX 7900 XTX, driver far ahead", machine("2.5.1+rocm6.2", "gfx1100", rocm={"driver": "6.16.13"}), "risky", {"amd-driver"}, set(), {}),
    ("RX 7900 XTX, driver 30.30", machine("2.11.0+rocm7.2", "gfx1100", rocm={"driver": "6.16.13"}), "ready", set(), set(), {}),
    (
        "RX 7900 XTX, ROCm 7.11 on 7.12",
        machine("2.10.0+rocm7.11", "gfx1100", rocm={"version": "7.12.0"}),
        "risky",
        {"fused-attention"},
        {"rocm-differs"},
        {},
    ),
    (
        "RX 7900 XTX, separate amdsmi",
        machine("2.9.1+rocm6.4", "gfx1100", packages={"amdsmi": "26.2"}),
        "risky",
        {"amdsmi-clash"},
        set(),
        {},
    ),
    ("2 x RX 7900 XTX", machine("2.9.1+rocm6.4", "gfx1100", "gfx1100", command_line="quiet"), "risky", {"several-gpus"}, set(), {}),
    (
        "RX 7900 XTX under WSL",
        machine("2.9.1+rocm6.4", "gfx1100", wsl=True, kernel="6.6.87.2-microsoft-standard-WSL2", devices=GONE),
        "ready",
        set(),
        {"windows-subsystem"},
        {},
    ),
    ("RX 7800 XT", machine("2.9.1+rocm6.4", "gfx1101"), "ready", set(), {"fused-attention"}, {}),
    ("RX 7800 XT, torch before it", machine("2.5.1+rocm6.2", "gfx1101"), "blocked", {"gpu-arch"}, set(), {}),
    ("RX 7600", machine("2.9.1+rocm6.4", "gfx1102"), "ready", set(), {"fused-attention"}, {}),
    ("RX 7600, torch before it", machine("2.6.0+rocm6.2.4", "gfx1102"), "blocked", {"gpu-arch"}, set(), {}),
    ("780M laptop", machine("2.13.0+rocm7.2", "gfx1103"), "ready", set(), {"fused-attention"}, {}),
    ("780M laptop, 2.9", machine("2.9.1+rocm6.4", "gfx1103"), "blocked", {"gpu-arch"}, set(), {}),
    ("780M laptop, CPU torch", machine("2.13.0+cpu", "gfx1103"), "ready", set(), {"device"}, {}),
    ("Strix Point", machine("2.10.0+rocm7.1", "gfx1150"), "ready", set(), {"strix-wheels"}, {}),
    ("Strix Halo", machine("2.11.0+rocm7.13", "gfx1151"), "ready", set(), set(), {}),
    (
        "Strix Halo, override over native code",
        machine("2.10.0+rocm7.1", "gfx1151", env={OVERRIDE: "11.0.0"}),
        "risky",
        {"gfx-override"},
        set(),
        {},
    ),
    (
        "Strix Halo, bad firmware",
        machine("2.11.0+rocm7.13", "gfx1151", rocm={"firmware": {"mes": "0x00000083"}}),
        "risky",
        {"mes-firmware"},
        set(),
        {},
    ),
    ("RX 9060 XT", machine("2.9.1+rocm6.4", "gfx1200"), "ready", set(), {"fused-attention"}, {}),
    ("RX 9070 XT", machine("2.9.1+rocm6.4", "gfx1201"), "ready", set(), set(), {}),
    ("RX 9070 XT, 2.13", machine("2.13.0+rocm7.2", "gfx1201"), "ready", set(), {"tall-gemm-gfx1201"}, {}),
    ("RX 9070 XT, older ROCm", machine("2.7.1+rocm6.3", "gfx1201"), "risky", {"rdna4-rocm"}, set(), {}),
    ("RX 9070 XT as gfx1100", machine("2.9.1+rocm6.4", "gfx1201", env={OVERRIDE: "11.0.0"}), "blocked", {"gfx-override"}, set(), {}),
    ("RX 9070 XT, CPU torch", machine("2.10.0+cpu", "gfx1201"), "risky", {"torch-build"}, set(), {}),
    (
        "three kinds under ROCm 6.0",
        machine("2.4.1+rocm6.0", "gfx908", "gfx906", "gfx1030"),
        "risky",
        {"three-architectures"},
        set(),
        {"TORCHDYNAMO_DISABLE": "1"},
    ),
]
OTHERS: list[Row] = [
    ("GTX 750 Ti", machine("2.9.1+cu126", "sm_50"), "ready", set(), {"bf16-hardware"}, {}),
    ("P100, right wheel", machine("2.9.1+cu126", "sm_60"), "ready", set(), {"bf16-hardware"}, {}),
    ("P100, plain pip", machine("2.13.0+cu130", "sm_60", cuda={"driver": "580.65"}), "blocked", {"gpu-arch"}, set(), {}),
    ("GTX 1070 Ti, cu128", machine("2.9.1+cu128", "sm_61"), "blocked", {"gpu-arch"}, set(), {}),
    ("V100, cu128", machine("2.9.1+cu128", "sm_70"), "ready", set(), {"bf16-hardware"}, {}),
    ("V100, cu130", machine("2.11.0+cu130", "sm_70"), "blocked", {"gpu-arch"}, set(), {}),
    ("T4", machine("2.13.0+cu130", "sm_75", cuda={"driver": "580.65"}), "ready", set(), {"bf16-hardware"}, {}),
    ("T4 with flash-attn", machine("2.9.1+cu128", "sm_75", packages={"flash-attn": "2.8.3"}), "risky", {"flash-attention"}, set(), {}),
    ("A100", machine("2.13.0+cu130", "sm_80", cuda={"driver": "580.95.05"}), "ready", set(), set(), {}),
    ("A100, old driver", machine("2.13.0+cu130", "sm_80", cuda={"driver": "535.183.01"}), "blocked", {"nvidia-driver"}, set(), {}),
    ("RTX 3090", machine("2.9.1+cu128", "sm_86", cuda={"driver": "550.54.14"}), "ready", set(), set(), {}),
    ("RTX 3090, hidden", machine("2.9.1+cu128", "sm_86", env={"CUDA_VISIBLE_DEVICES": "3"}), "risky", {"visible-devices"}, set(), {}),
    ("RTX 3090, container", machine("2.9.1+cu128", "sm_86", container=True, devices=NO_NVIDIA), "blocked", {"device-access"}, set(), {}),
    ("2 x RTX 4090", machine("2.9.1+cu128", "sm_89", "sm_89"), "ready", set(), set(), {}),
    (
        "RTX 4090 under WSL",
        machine("2.9.1+cu128", "sm_89", wsl=True, devices=NO_NVIDIA, env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        "risky",
        {"allocator-options"},
        set(),
        {},
    ),
    ("RTX 4090 laptop with a Radeon iGPU", machine("2.9.1+cu128", "gfx1036", "sm_89"), "ready", set(), set(), {}),
    ("H200, 2.13", machine("2.13.0+cu130", "sm_90", cuda={"driver": "580.95.05"}), "risky", {"cudnn-attention"}, set(), {}),
    ("H200, 2.9", machine("2.9.1+cu128", "sm_90"), "ready", set(), set(), {"TORCH_CUDNN_SDPA_PREFERRED": "0"}),
    ("H100, 2.5.0", machine("2.5.0+cu124", "sm_90"), "risky", {"cudnn-attention"}, set(), {}),
    ("B200", machine("2.11.0+cu128", "sm_100"), "risky", {"cudnn-attention"}, set(), {}),
    ("RTX 5090", machine("2.9.1+cu130", "sm_120", cuda={"driver": "580.65"}), "ready", set(), set(), {}),
    ("RTX 5090, torch before it", machine("2.5.1+cu124", "sm_120"), "blocked", {"gpu-arch"}, set(), {}),
    ("CPU only", machine("2.13.0+cpu"), "ready", set(), {"device"}, {}),
    ("CPU only, no torch", machine(None), "blocked", {"torch-import"}, set(), {}),
    (
        "CPU only, transformers 5 on torch 2.5",
        machine("2.5.1+cpu", packages={"transformers": "5.23.0"}),
        "blocked",
        {"transformers-torch"},
        set(),
        {},
    ),
    (
        "CPU only, Python 3.13 and an older ROCm wheel",
        machine("2.5.1+rocm6.2", "gfx1100", python="3.13.1"),
        "blocked",
        {"python-wheel"},
        set(),
        {},
    ),
    ("CPU torch in a GPU's place", machine("2.13.0+cpu", "sm_89"), "risky", {"torch-build"}, set(), {}),
    ("macOS", machine("2.13.0", distro="macOS 15.1", system="Darwin", kernel="24.1.0"), "ready", set(), {"operating-system"}, {}),
    (
        "native Windows",
        machine("2.13.0+cpu", distro="Windows 11", system="Windows", kernel="10"),
        "blocked",
        {"operating-system"},
        set(),
        {},
    ),
    ("nothing known", {}, "ready", set(), set(), {}),
]
MACHINES = AMD + OTHERS
