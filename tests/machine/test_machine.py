"""Machine facts: read from recorded trees of machines, from tools that misbehave, and from torch, which is asked once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.checkup.examine import examine
from holdfast.machine import torch_build as torchbuild
from holdfast.machine.gpu_memory import gpu_memory, in_use
from holdfast.machine.machine_file import read, training_devices
from holdfast.machine.place import Place
from holdfast.machine.read import read_machine, read_packages
from holdfast.machine.system import memory_limit, processors, read_system, usable_threads
from holdfast.machine.vendor_tools import nvidia_cards, rocm_agents

ROCMINFO = """ROCk module is loaded
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD Ryzen 9 7950X
  Marketing Name:          AMD Ryzen 9 7950X
  Device Type:             CPU
*******
Agent 2
*******
  Name:                    gfx1100
  Marketing Name:          Radeon RX 7900 XTX
  Device Type:             GPU
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx1100
*** Done ***
"""
NVIDIA_SMI = "00000000:01:00.0, NVIDIA GeForce RTX 4090, 8.9, 24564, 550.54.14\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Counts how often torch is really asked."""
    calls: list[int] = []

    def ask() -> dict[str, Any]:
        calls.append(1)
        return {"torch": {"devices": []}} if len(calls) > 1 else {"torch_error": "boom"}

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    monkeypatch.setattr(torchbuild, "_ask_now", ask)
    return calls


def test_a_failed_answer_is_not_kept_and_a_good_one_is(asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    first = read_machine()
    assert first["torch_error"] == "boom"
    assert first["torch"]["version"] == torch.__version__, "its files tell the version all the same"
    assert read_machine()["torch"]["devices"] == []
    assert read_machine()["torch"]["devices"] == []
    assert len(asked) == 2
    assert read_machine(ask_torch=False)["torch"]["devices"] == [], "an answer that is kept costs no child"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert "devices" not in read_machine(ask_torch=False)["torch"]
    assert len(asked) == 2
    read_machine()
    assert len(asked) == 3


def test_no_devices_is_an_answer_for_now_alone_where_the_build_could_have_some(
    asked: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torchbuild, "torch_files", lambda _folder: {"version": "2.13.0", "cuda": "13.0", "hip": None})
    for _ in range(3):
        read_machine()
    assert len(asked) == 3, "a driver that is loaded meanwhile is seen"
    monkeypatch.setattr(torchbuild, "_ask_now", lambda: asked.append(1) or {"torch": {"devices": [{"arch": "sm_90"}]}})
    assert read_machine()["torch"]["devices"] == read_machine()["torch"]["devices"] == [{"arch": "sm_90"}]
    assert len(asked) == 4
    nodes = tmp_path / "dev"
    (nodes / "dri").mkdir(parents=True)
    (nodes / "nvidia0").touch()
    one = torchbuild.device_nodes(nodes)
    (nodes / "dri" / "renderD128").touch()
    assert len(one) == 1 and len(torchbuild.device_nodes(nodes)) == 2
    monkeypatch.setattr(torchbuild, "device_nodes", lambda _folder: one)
    read_machine()
    assert len(asked) == 5, "another card, another question"
    parts = tmp_path / "capabilities"
    write(parts, {"gpu0/mig/gi1/access": "", "gpu0/mig/gi1/ci0/access": "", "gpu0/mig/gi2/ci0/access": "", "mig/config": ""})
    found = torchbuild.mig_slices(parts)
    assert found == ["gpu0/mig/gi1/ci0", "gpu0/mig/gi2/ci0"] and torchbuild.mig_slices(tmp_path / "none") == []
    monkeypatch.setattr(torchbuild, "mig_slices", lambda: found)
    read_machine()
    assert len(asked) == 6, "a card that was divided since (MIG) has less memory, and the same node"


def test_the_real_torch_answers_from_a_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    facts = read_machine(tmp_path)
    assert facts["torch"]["version"] == torch.__version__
    assert facts["torch"]["devices"] == []
    assert facts["memory_bytes"] > 1 << 28
    assert facts["disk_free_bytes"] > 0
    assert facts["cpu"]["threads"] == usable_threads() >= 1
    assert read(facts).odd == ()


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = root / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def kfd(root: Path, node: int, target: int, location: int, minor: int, vram: int, **files: str) -> None:
    """One GPU as the amdgpu driver shows it: a node of the topology and its render device."""
    properties = {"simd_count": 96, "gfx_target_version": target, "location_id": location, "domain": 0, "drm_render_minor": minor}
    device = f"/sys/class/drm/renderD{minor}/device"
    write(
        root,
        {
            f"/sys/class/kfd/kfd/topology/nodes/{node}/properties": "".join(f"{name} {value}\n" for name, value in properties.items()),
            f"{device}/mem_info_vram_total": f"{vram}\n",
            f"/dev/dri/renderD{minor}": "",
            **{f"{device}/{name}": text for name, text in files.items()},
        },
    )


def pci(root: Path, address: str, vendor: int, device: int, driver: str | None) -> None:
    folder = f"/sys/bus/pci/devices/{address}"
    write(root, {f"{folder}/vendor": hex(vendor), f"{folder}/device": hex(device), f"{folder}/class": "0x030000"})
    if driver:
        target = root / "sys/bus/pci/drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (root / folder.lstrip("/") / "driver").symlink_to(target)


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)


def recorded(root: Path, deadline_s: float = 60.0, **environ: str) -> dict[str, Any]:
    return read_machine(place=Place(root, {"PATH": str(root / "bin"), **environ}), tool_deadline_s=deadline_s)


def test_a_desktop_with_an_integrated_gpu_and_a_card(tmp_path: Path) -> None:
    kfd(tmp_path, 1, 110000, 0x0300, 128, 21458059264, **{"fw_version/mes_fw_version": "0x00000052"})
    kfd(tmp_path, 2, 100306, 0x0D00, 129, 536870912)
    write(tmp_path, {"/sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 32\nsimd_count 0\n"})
    pci(tmp_path, "0000:03:00.0", 0x1002, 0x744C, "amdgpu")
    pci(tmp_path, "0000:0d:00.0", 0x1002, 0x164E, "amdgpu")
    write(
        tmp_path,
        {
            "/usr/share/misc/pci.ids": "1002  AMD\n\t744c  Navi 31 [Radeon RX 7900 XT]\n10de  NVIDIA\n\t744c  something else\n",
            "/sys/module/amdgpu/version": "6.8.5\n",
            "/opt/rocm/.info/version": "6.2.0-66\n",
            "/proc/sys/kernel/osrelease": "6.8.0-45-generic\n",
            "/proc/cmdline": "root=/dev/sda1 password=geheim iommu=pt quiet\n",
            "/proc/meminfo": "MemTotal:       32505856 kB\nSwapTotal: rubbish\nnothing\n",
            "/etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n',
            "/dev/kfd": "",
            "/etc/apt/sources.list.d/rocm.list": "# repo.radeon.com/rocm/apt/5.7\ndeb https://repo.radeon.com/rocm/apt/6.2 noble main\n",
            "/etc/modprobe.d/x.conf": "blacklist nouveau\n  blacklist amdgpu \n#blacklist nvidia\n",
        },
    )
    facts = recorded(tmp_path, HSA_XNACK="1", AWS_SECRET_ACCESS_KEY="x", HSA_TOKEN="x", HOME="/home/me")
    card, small = facts["gpus"]
    assert (card["arch"], card["name"], card["memory_bytes"]) == ("gfx1100", "Navi 31 [Radeon RX 7900 XT]", 21458059264)
    assert (card["integrated"], card["driver"], card["pci"]) == (False, "amdgpu", "0000:03:00.0")
    assert (small["arch"], small["integrated"]) == ("gfx1036", True)
    assert facts["rocm"] == {"version": "6.2.0", "driver": "6.8.5", "firmware": {"mes": "0x00000052"}, "repositories": ["rocm/apt/6.2"]}
    assert facts["os"]["blacklisted"] == ["amdgpu"]
    assert (facts["os"]["kernel"], facts["os"]["distro"]) == ("6.8.0-45-generic", "Ubuntu 24.04.1 LTS")
    assert facts["os"]["command_line"] == "iommu=pt", "what does not concern GPUs is nobody's business"
    assert (facts["memory_bytes"], facts["swap_bytes"]) == (32505856 * 1024, None)
    assert facts["env"] == {"HSA_XNACK": "1"}
    assert facts["devices"]["/dev/kfd"]["exists"]
    assert "integrated-gpu" in {finding.id for finding in examine(facts)}


@pytest.mark.parametrize(
    ("target", "arch"),
    [(90006, "gfx906"), (90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110501, "gfx1151"), (120001, "gfx1201")],
)
def test_the_drivers_number_names_the_architecture(tmp_path: Path, target: int, arch: str) -> None:
    kfd(tmp_path, 1, target, 0x0300, 128, 1 << 34)
    assert recorded(tmp_path)["gpus"][0]["arch"] == arch


def test_an_nvidia_card_without_any_tool(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.0", 0x10DE, 0x2684, "nvidia")
    write(
        tmp_path,
        {
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
            "/proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA GeForce RTX 4090\nIRQ: 1\n",
        },
    )
    facts = recorded(tmp_path)
    assert [(gpu["vendor"], gpu["name"], gpu["driver"]) for gpu in facts["gpus"]] == [("nvidia", "NVIDIA GeForce RTX 4090", "nvidia")]
    assert facts["cuda"]["driver"] == "580.65.06"


def test_what_the_tools_tell_is_added(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.0", 0x10DE, 0x2684, "nvidia")
    tool(tmp_path / "bin", "nvidia-smi", f"echo -n '{NVIDIA_SMI}'")
    facts = recorded(tmp_path)
    assert [(gpu["arch"], gpu["memory_bytes"], gpu["pci"]) for gpu in facts["gpus"]] == [("sm_89", 24564 << 20, "0000:01:00.0")]
    assert facts["tools"]["nvidia-smi"] == "ok"
    assert facts["cuda"]["driver"] == "550.54.14"


def test_who_holds_the_cards_memory_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path, {"PATH": str(tmp_path / "bin")})
    assert gpu_memory(place) is None
    answers = 'case "$1" in *memory.total*) echo "21000, 24564"; echo "[N/A], [N/A]";; *) echo "1, 512"; echo "4242, 20000";; esac'
    tool(tmp_path / "bin", "nvidia-smi", f"PATH=/usr/bin:/bin; {answers}")
    assert gpu_memory(place) is None, "a tool without a driver is not asked"
    write(tmp_path, {
        "/dev/nvidiactl": "",
        "/sys/class/drm/card0/device/mem_info_vram_used": "1073741824",
        "/sys/class/drm/card0/device/mem_info_vram_total": "21458059264",
        "/sys/class/drm/card0-DP-1/status": "connected",
        "/sys/class/kfd/kfd/proc/4343/vram_51140": "1073741824",
    })  # fmt: skip
    found = gpu_memory(place)
    assert found is not None
    assert [card["vendor"] for card in found["cards"]] == ["amd", "nvidia"]
    assert [(one["pid"], one["bytes"] >> 20) for one in found["processes"]] == [(4242, 20000), (4343, 1024), (1, 512)]
    assert in_use(found).startswith("21.5 of 44.0 GiB of the cards' memory are in use, by process 4242 (")
    tool(tmp_path / "bin", "nvidia-smi", "PATH=/usr/bin:/bin; exec sleep 60")
    assert [card["vendor"] for card in (gpu_memory(place, deadline_s=0.2) or {})["cards"]] == ["amd"]


def test_a_card_that_no_driver_has_taken(tmp_path: Path) -> None:
    pci(tmp_path, "0000:01:00.0", 0x10DE, 0x2684, "nouveau")
    pci(tmp_path, "0000:02:00.0", 0x1002, 0x744C, None)
    pci(tmp_path, "0000:03:00.0", 0x1A03, 0x2000, "ast")
    facts = recorded(tmp_path)
    assert [gpu["driver"] for gpu in facts["gpus"]] == ["nouveau", "none"]
    assert len([finding for finding in examine(facts) if finding.id == "driver-loaded"]) == 2


@pytest.mark.parametrize(
    ("script", "state"),
    [
        ("exec sleep 60", "hanging"),
        ("trap '' TERM; sleep 60 & wait", "hanging"),
        ("echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9", "failed: exit code 9, NVIDIA-SMI has failed because"),
        ("head -c 5000 /dev/urandom", "rubbish"),
        ("echo '01:00.0, RTX'", "rubbish"),
        ("kill -SEGV $$", "failed: exit code -11"),
    ],
)
def test_a_tool_that_misbehaves_is_a_fact(tmp_path: Path, script: str, state: str) -> None:
    tool(tmp_path / "bin", "nvidia-smi", f"PATH=/usr/bin:/bin; {script}")
    deadline_s = 0.5 if state == "hanging" else 60.0
    facts = recorded(tmp_path, deadline_s)
    assert facts["tools"]["nvidia-smi"].startswith(state)
    assert facts["gpus"] == []
    pci(tmp_path, "0000:01:00.0", 0x10DE, 0x2684, "nvidia")
    assert "vendor-tools" in {finding.id for finding in examine(recorded(tmp_path, deadline_s))}


def test_an_empty_and_a_shattered_tree_are_unknown_and_no_crash(tmp_path: Path) -> None:
    assert recorded(tmp_path)["gpus"] == []
    kfd(tmp_path, 1, 110000, 0x0300, 128, 1)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.write_bytes(b"\xff\x00\n9999999999999999999999 x\nsimd_count -4\n")
    pci(tmp_path, "rubbish", 0x1002, 0, None)
    (tmp_path / "proc").mkdir(exist_ok=True)
    (tmp_path / "proc/meminfo").mkdir()
    facts = recorded(tmp_path)
    assert facts["memory_bytes"] is None or isinstance(facts["memory_bytes"], int)
    examine(facts)


def test_rocminfo_names_gpus_and_not_their_instruction_sets() -> None:
    assert rocm_agents(ROCMINFO) == [{"arch": "gfx1100", "name": "Radeon RX 7900 XTX"}]
    assert rocm_agents("Unable to open /dev/kfd") is None
    assert nvidia_cards("") == []
    assert nvidia_cards("no devices were found") is None


def test_a_warning_of_nvidia_smi_beside_its_cards_hides_none_of_them() -> None:
    card = "00000000:04:00.0, NVIDIA A100, 8.0, 40960, 550.54\n"
    warning = "WARNING: infoROM is corrupted at gpu 0000:04:00.0\n"
    for text in (card + warning, warning + card):
        assert [(one["arch"], one["memory_bytes"]) for one in nvidia_cards(text) or []] == [("sm_80", 40 << 30)]


def test_what_torch_sees_is_not_remembered_for_another_choice_of_cards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    kept = {torchbuild._kept_answer("2.13.0+rocm7.2")}
    for name in ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"):
        monkeypatch.setenv(name, "0")
        kept.add(torchbuild._kept_answer("2.13.0+rocm7.2"))
    assert len(kept) == 4


def torch_folder(root: Path, version: str, hip: str | None, files: tuple[str, ...] = ()) -> Path:
    text = f"from typing import Optional\n__version__ = {version!r}\ncuda: Optional[str] = None\nhip: Optional[str] = {hip!r}\n"
    write(root, {"torch/version.py": text, **{f"torch/lib/rocblas/library/{name}": "" for name in files}})
    return root / "torch"


def test_a_torch_is_read_from_its_files(tmp_path: Path) -> None:
    kernels = ("TensileLibrary_gfx90a.co", "TensileLibrary_lazy_gfx1100.dat", "Kernels.so-000-gfx1030.hsaco")
    build = torchbuild.torch_files(torch_folder(tmp_path, "2.9.1+rocm6.4", "6.4.43482", kernels))
    assert build == {"version": "2.9.1+rocm6.4", "hip": "6.4.43482", "cuda": None, "blas_archs": ["gfx1030", "gfx1100", "gfx90a"]}
    assert torchbuild.torch_files(torch_folder(tmp_path / "other", "2.13.0+cpu", None)) == {
        "version": "2.13.0+cpu",
        "hip": None,
        "cuda": None,
    }


@pytest.mark.parametrize("text", ["", "__version__ = (", "__version__ = 3", "\x00"])
def test_a_torn_torch_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"torch/version.py": text})
    assert torchbuild.torch_files(tmp_path / "torch") is None
    assert torchbuild.torch_files(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"torch": None, "gpus": [{"vendor": "amd"}]}, 0),
        ({"torch": {"version": "2.13.0+cpu", "hip": None, "cuda": None}, "gpus": [{"vendor": "amd"}]}, 0),
        ({"torch": {"version": "2.9.1+rocm6.4"}, "gpus": [{"vendor": "amd"}, {"vendor": "nvidia"}]}, 1),
        ({"torch": {"version": "2.9.1+rocm6.4", "devices": []}, "gpus": [{"vendor": "amd"}]}, 0),
        ({"gpus": [{"vendor": "amd"}]}, 1),
        ({"torch": {"version": "2.9.1+rocm6.4", "devices": [{"arch": "gfx1036"}, {"arch": "gfx1100"}, {"integrated": True}]}}, 1),
        ({"torch": {"version": "2.9.1+rocm6.4", "devices": [{"arch": "gfx1151"}]}}, 1),
        ({"torch": {"version": "2.11.0+rocm7.2"}, "gpus": [{"vendor": "amd", "arch": "gfx1151"}, {"vendor": "nvidia"}]}, 1),
        ({"torch": "rubbish", "gpus": "rubbish"}, 0),
    ],
)
def test_a_run_uses_the_gpus_that_torch_can_use(facts: dict[str, Any], expected: int) -> None:
    assert len(training_devices(facts)) == expected


def test_packages_of_one_gpus_kernels_are_read_where_rocm_is_made_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"rocm_sdk_core": "7.14.0", "rocm_sdk_libraries": "7.14.0", "rocm_sdk_device_gfx1201": "7.14.0"}
    for name, version in names.items():
        about = tmp_path / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    assert "rocm-sdk-device-gfx1201" not in read_packages()
    monkeypatch.syspath_prepend(str(tmp_path))
    found = read_packages()
    assert found["rocm-sdk-libraries"] == found["rocm-sdk-device-gfx1201"] == "7.14.0"


@pytest.mark.parametrize(
    ("files", "memory", "cores"),
    [
        ({}, None, None),
        ({"/sys/fs/cgroup/memory.max": "4096", "/sys/fs/cgroup/cpu.max": "150000 100000"}, 4096, 1.5),  # a container's own root
        ({"/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/cpu.max": "max 100000"}, None, None),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "4096"}, 4096, None),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": str(2**63 - 4096), "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1"}, None, None),
        (  # a unit inside of a slice: the narrowest group above it holds
            {"/proc/self/cgroup": "0::/user.slice/run.scope", "/sys/fs/cgroup/cgroup.controllers": "memory cpu"}
            | {"/sys/fs/cgroup/user.slice/run.scope/memory.max": "8192", "/sys/fs/cgroup/user.slice/memory.max": "4096"}
            | {"/sys/fs/cgroup/user.slice/run.scope/cpu.max": "100000 100000", "/sys/fs/cgroup/user.slice/cpu.max": "max 100000"},
            4096,
            1.0,
        ),
        (  # from here on its processes are slowed down until they stand still
            {"/proc/self/cgroup": "0::/run.scope", "/sys/fs/cgroup/cgroup.controllers": "memory"}
            | {"/sys/fs/cgroup/run.scope/memory.high": "4096", "/sys/fs/cgroup/run.scope/memory.max": "8192"},
            4096,
            None,
        ),
        (  # both versions are mounted, and the first one has the controllers
            {"/proc/self/cgroup": "4:memory:/slurm/job_7\n1:cpu,cpuacct:/slurm\n0::/"}
            | {
                "/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": "4096",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 62),
            }
            | {"/sys/fs/cgroup/cpu/slurm/cpu.cfs_quota_us": "200000", "/sys/fs/cgroup/cpu/slurm/cpu.cfs_period_us": "100000"},
            4096,
            2.0,
        ),
        (
            {"/proc/self/cgroup": "4:memory:/docker/abc", "/sys/fs/cgroup/memory/memory.limit_in_bytes": "4096"},
            4096,
            None,
        ),  # the host's path
        ({"/proc/self/cgroup": "nonsense", "/sys/fs/cgroup/memory.max": "4096", "/sys/fs/cgroup/cpu.max": "1 0"}, 4096, None),
    ],
)
def test_limits_of_all_control_groups_above_a_process_hold(
    files: dict[str, str], memory: int | None, cores: float | None, tmp_path: Path
) -> None:
    write(tmp_path, {name: f"{text}\n" for name, text in files.items()})
    place = Place(tmp_path, {})
    assert (memory_limit(place), processors(place)) == (memory, cores)
    assert read_system(place, None)["memory_bytes"] == memory, "there is no /proc/meminfo here"
