"""What a machine is doing, from trees of files as the drivers' documentation describes them (no recordings of real machines)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.machine.place import Place
from holdfast.machine.readings.now import processor_times, read_now

CARD = "sys/class/drm/card1/device"
HWMON = f"{CARD}/hwmon/hwmon4"


def tree(root: Path, **more: str) -> Place:
    files = {
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 50 kB\n",
        "proc/stat": "cpu  100 0 50 800 50 0 0 0 70 0\ncpu0 1 1 1 1\n",
        f"{CARD}/vendor": "0x1002\n",
        f"{CARD}/gpu_busy_percent": "97\n",
        f"{CARD}/mem_info_vram_total": "21458059264\n",
        f"{CARD}/mem_info_vram_used": "1000\n",
        f"{HWMON}/temp1_input": "71000\n",
        f"{HWMON}/power1_average": "300000000\n",
        f"{HWMON}/power1_cap": "315000000\n",
        f"{HWMON}/freq1_input": "2400000000\n",
        f"{HWMON}/pwm1": "51\n",
        f"{HWMON}/pwm1_max": "255\n",
        "sys/class/drm/card1-DP-1/status": "connected\n",
    } | more
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Place(root, {})


def test_a_card_of_amd_is_read_from_its_drivers_files(tmp_path: Path) -> None:
    found = read_now(tree(tmp_path), None, None)
    (card,) = found["gpus"]
    assert (card["busy"], card["celsius"], card["watts"], card["watts_cap"], card["mhz"], card["fan"]) == (0.97, 71, 300, 315, 2400, 0.2)
    assert (found["memory_used_bytes"], found["swap_used_bytes"], found["processors_busy"]) == (600 * 1024, 0, None)


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": "204800", "memory.current": "150000", "memory.stat": "anon 1\ninactive_file 50000\nactive_file 7\n"},
        {
            "memory/memory.limit_in_bytes": "204800",
            "memory/memory.usage_in_bytes": "150000",
            "memory/memory.stat": "inactive_file 3\ntotal_inactive_file 50000\n",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_in_a_container_memory_is_what_its_control_group_allows_and_holds(files: dict[str, str], tmp_path: Path) -> None:
    place = tree(tmp_path, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    found = read_now(place, None, None)
    assert (found["memory_bytes"], found["memory_used_bytes"]) == (204800, 100000)


def test_a_limit_above_the_machines_memory_is_none(tmp_path: Path) -> None:
    found = read_now(tree(tmp_path, **{"sys/fs/cgroup/memory.max": str(1 << 40), "sys/fs/cgroup/memory.current": "5"}), None, None)
    assert (found["memory_bytes"], found["memory_used_bytes"]) == (1000 * 1024, 600 * 1024)


def test_newer_drivers_tell_power_in_another_file(tmp_path: Path) -> None:
    place = tree(tmp_path, **{f"{HWMON}/power1_input": "12000000\n"})
    (tmp_path / HWMON / "power1_average").unlink()
    assert read_now(place, None, None)["gpus"][0]["watts"] == 12


def test_processors_are_busy_between_two_counts(tmp_path: Path) -> None:
    place = tree(tmp_path)
    before = processor_times(place)
    (tmp_path / "proc/stat").write_text("cpu  130 0 60 850 60 0 0 0 99 0\n")
    now = processor_times(place)
    assert before == (150, 1000) and read_now(place, before, now)["processors_busy"] == pytest.approx(0.4)
    assert read_now(place, (150, 1000), (250, 1090))["processors_busy"] == 1, "the ticks of waiting went back by ten: it was 1.111"


@pytest.mark.parametrize("text", ["", "garbage", "cpu x", "cpu 1 2"])
def test_what_cannot_be_read_is_unknown(text: str, tmp_path: Path) -> None:
    place = tree(tmp_path, **{"proc/stat": text, "proc/meminfo": text, f"{HWMON}/temp1_input": text, f"{CARD}/gpu_busy_percent": text})
    found = read_now(place, processor_times(place), processor_times(place))
    assert found["processors_busy"] is found["memory_bytes"] is found["gpus"][0]["celsius"] is found["gpus"][0]["busy"] is None
