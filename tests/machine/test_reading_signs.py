"""Signs on trees and answers of ten machines. None is a recording of a real one: each was made from documentation.

AMD: docs.kernel.org/gpu/amdgpu/thermal.html and gpu_metrics of kgd_pp_interface.h; NVIDIA: nvml.h; figures: the cards' data sheets.
"""

from __future__ import annotations

import json
import struct
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import wait_until
from holdfast.base.files import Json, read_sound_lines
from holdfast.machine.place import Place
from holdfast.machine.readings import keep, now
from holdfast.machine.readings.card import card_of
from holdfast.machine.readings.keep import Keeper, kept, newest, with_owners
from holdfast.machine.readings.now import MachineReader, Sampler, read_now
from holdfast.machine.readings.nvidia import nvidia_card
from holdfast.machine.readings.signs import signs
from holdfast.machine.readings.words import figures, seen_signs, summed, told
from holdfast.watch.metrics import metrics

GIB = 2**30
HEAT, POWER, BRAKE = 1 << 36, 1 << 0, 1 << 22  # bits of indep_throttle_status: hot spot, package power, a current of the card
OURS, THEIRS = 500, 900


def amd(root: Path, name: str, gib: int, busy: int, hot: int, limit: int, watts: int, cap: int, usual: int, fan: int, **more: Any) -> Place:
    """A machine with one card of AMD, process 500 of a run on it, and perhaps 900 of somebody else."""
    device, hwmon = "sys/class/drm/card0/device", "sys/class/drm/card0/device/hwmon/hwmon2"
    files = {
        f"{device}/vendor": "0x1002\n",
        f"{device}/product_name": name,
        f"{device}/gpu_busy_percent": f"{busy}\n",
        f"{device}/mem_info_vram_total": f"{gib * GIB}\n",
        f"{device}/mem_info_vram_used": f"{gib * GIB // 2}\n",
        f"{device}/current_link_speed": "16.0 GT/s PCIe\n",
        f"{device}/current_link_width": "16\n",
        f"{device}/drm/renderD128/dev": "226:128\n",
        f"{hwmon}/temp1_label": "edge\n",
        f"{hwmon}/temp1_input": f"{(hot - 15) * 1000}\n",
        f"{hwmon}/temp2_label": "junction\n",
        f"{hwmon}/temp2_input": f"{hot * 1000}\n",
        f"{hwmon}/temp2_crit": f"{limit * 1000}\n",
        f"{hwmon}/{more.get('power', 'power1_average')}": f"{watts}000000\n",
        f"{hwmon}/power1_cap": f"{cap}000000\n",
        f"{hwmon}/power1_cap_default": f"{usual}000000\n",
        f"{hwmon}/pwm1": f"{fan * 255 // 100}\n",
        f"{hwmon}/pwm1_max": "255\n",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "drm_render_minor 0\n",
        "sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 304\ndrm_render_minor 128\n",
        "sys/class/kfd/kfd/topology/nodes/1/gpu_id": "4711\n",
        f"sys/class/kfd/kfd/proc/{OURS}/vram_4711": f"{8 * GIB}\n",
        f"proc/{OURS}/stat": f"{OURS} (pt main) thread) S 400 1\n",
        "proc/400/stat": "400 (nurse) S 1 1\n",
        f"proc/{THEIRS}/stat": f"{THEIRS} (game) S 1 1\n",
        "proc/1/stat": "1 (init) S 0 1\n",
    }
    if more.get("shared"):
        files[f"sys/class/kfd/kfd/proc/{THEIRS}/vram_4711"] = f"{6 * GIB}\n"
    for file, text in files.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    if (bits := more.get("bits")) is not None:
        table = struct.pack("<HBB", 120, 1, 3) + bytes(108) + struct.pack("<Q", bits)
        (root / device / "gpu_metrics").write_bytes(table)
    return Place(root, {})


AMD = {
    "RX 7900 XTX, healthy": (("Radeon RX 7900 XTX", 24, 98, 88, 110, 330, 339, 339, 55), {"bits": POWER}, []),
    "RX 6800 XT, too hot": (("Radeon RX 6800 XT", 16, 97, 109, 110, 210, 255, 255, 99), {"bits": HEAT}, ["throttled", "fan"]),
    "RX 7600 XT, limit lowered": (
        ("Radeon RX 7600 XT", 16, 99, 70, 110, 118, 120, 160, 30), {"bits": POWER, "power": "power1_input"}, ["power_cap"],
    ),
    "Instinct MI210, shared": (("AMD Instinct MI210", 64, 95, 70, 110, 250, 300, 300, 0), {"shared": True}, ["another_process"]),
    "Radeon PRO W7900, starved": (("Radeon PRO W7900", 48, 12, 55, 110, 90, 241, 241, 22), {"bits": 0}, ["starved"]),
    "Radeon VII, fan stands": (("Radeon VII", 16, 90, 96, 118, 200, 250, 250, 0), {"bits": BRAKE}, ["throttled", "fan"]),
}  # fmt: skip


@pytest.mark.parametrize("machine", AMD)
def test_signs_of_a_card_of_amd(machine: str, tmp_path: Path) -> None:
    facts, more, wanted = AMD[machine]
    place = amd(tmp_path, *facts, **more)
    readings = [with_owners(read_now(place, None, None), place, {400}) | {"step": step} for step in range(10)]
    assert [one["sign"] for one in signs(readings)] == wanted, signs(readings)
    assert signs(readings[:2]) == [], "too few to say"
    for one in signs(readings):
        assert one["says"].startswith(f"GPU 0 ({facts[0]})")


class NvmlError(Exception):
    pass


def nvml(**answers: Any) -> Any:
    """NVML as nvidia-ml-py answers; what is not named is not supported by the card."""

    def ask(name: str) -> Any:
        def answer(*_: Any) -> Any:
            if name not in answers:
                raise NvmlError("Not Supported")
            return answers[name]

        return answer

    names = [
        "Name", "UtilizationRates", "MemoryInfo", "Temperature", "TemperatureThreshold", "PowerUsage", "EnforcedPowerLimit",
        "PowerManagementDefaultLimit", "ClockInfo", "FanSpeed", "CurrPcieLinkWidth", "CurrPcieLinkGeneration",
        "CurrentClocksThrottleReasons", "ComputeRunningProcesses",
    ]  # fmt: skip
    constants = {"NVML_TEMPERATURE_GPU": 0, "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1, "NVML_CLOCK_SM": 1, "NVMLError": NvmlError}
    return SimpleNamespace(**{f"nvmlDeviceGet{name}": ask(name) for name in names}, **constants)


def card(
    name: str, gib: int, busy: int, hot: int, limit: int, watts: int, cap: int, usual: int, reasons: int, **more: Any
) -> dict[str, Any]:
    holders = [SimpleNamespace(pid=OURS, usedGpuMemory=gib * GIB // 2)]
    holders += [SimpleNamespace(pid=THEIRS, usedGpuMemory=4 * GIB)] if more.pop("shared", False) else []
    return {
        "Name": name,
        "UtilizationRates": SimpleNamespace(gpu=busy),
        "MemoryInfo": SimpleNamespace(total=gib * GIB, used=gib * GIB // 2),
        "Temperature": hot,
        "TemperatureThreshold": limit,
        "PowerUsage": watts * 1000,
        "EnforcedPowerLimit": cap * 1000,
        "PowerManagementDefaultLimit": usual * 1000,
        "CurrPcieLinkWidth": 16,
        "CurrPcieLinkGeneration": 4,
        "CurrentClocksThrottleReasons": reasons,
        "ComputeRunningProcesses": holders,
    } | more


NVIDIA = {
    "H100 SXM, healthy": (card("NVIDIA H100 80GB HBM3", 80, 99, 62, 87, 690, 700, 700, 0x4), []),
    "RTX 4090, power limit lowered, shared": (
        card("NVIDIA GeForce RTX 4090", 24, 98, 64, 90, 318, 320, 450, 0x4, shared=True, FanSpeed=45), ["power_cap", "another_process"],
    ),
    "A100, hardware slows it for heat": (card("NVIDIA A100-SXM4-80GB", 80, 90, 92, 92, 250, 400, 400, 0x8 | 0x40), ["throttled"]),
    "T4, power brake, starved": (card("Tesla T4", 16, 20, 60, 93, 40, 70, 70, 0x80), ["throttled", "starved"]),
}  # fmt: skip


@pytest.mark.parametrize("machine", NVIDIA)
def test_signs_of_a_card_of_nvidia(machine: str, tmp_path: Path) -> None:
    answers, wanted = NVIDIA[machine]
    place = amd(tmp_path, "", 1, 0, 0, 1, 1, 1, 1, 0)  # its processes
    readings = [with_owners({"gpus": [nvidia_card(nvml(**answers), None)]}, place, {400}) | {"step": step} for step in range(10)]
    assert [one["sign"] for one in signs(readings)] == wanted, signs(readings)
    bare = nvidia_card(nvml(Name=answers["Name"]), None)
    assert bare["throttled"] is bare["busy"] is bare["holders"] is None, "what a card does not tell is unknown"


def test_processes_of_another_container_are_no_strangers(tmp_path: Path) -> None:
    place = amd(tmp_path, *AMD["Instinct MI210, shared"][0], shared=True)
    (tmp_path / f"proc/{THEIRS}/stat").unlink()
    assert with_owners(read_now(place, None, None), place, {400})["gpus"][0]["others"] is None


def _reading(step: int, *cards: tuple[float, bool | None]) -> Json:
    """A reading of cards that are so busy, and told or not told to be the run's."""
    named = [card_of(f"card {at}", busy=busy) | {"others": None, "ours": ours} for at, (busy, ours) in enumerate(cards)]
    return {"step": step, "gpus": named}


@pytest.mark.parametrize(
    ("cards", "starved"),
    [
        ([(0.98, True), (0.0, None)], []),  # a second card, idle: the run does not use it
        ([(0.97, True), (0.03, False)], []),  # one with somebody else's desktop
        ([(0.2, True), (0.0, None)], [0]),
        ([(0.2, True), (0.3, True)], [0, 1]),
        ([(0.0, None), (0.95, None)], []),  # in a container nobody is seen: the busiest is the run's
        ([(0.0, None), (0.3, None)], [1]),
        ([(0.3, None)], [0]),
        ([(0.03, False)], []),  # a run on the CPU of a machine that has a card
    ],
)
def test_a_card_that_the_run_does_not_use_is_not_starved(cards: list[tuple[float, bool | None]], starved: list[int]) -> None:
    told = signs([_reading(step, *cards) for step in range(10)])
    assert [(one["sign"], one["gpu"]) for one in told] == [("starved", number) for number in starved]


@pytest.mark.parametrize(("on_cpu", "signs_told"), [(False, ["starved"]), (True, [])])
def test_a_card_is_the_runs_where_a_process_of_it_holds_memory_there(on_cpu: bool, signs_told: list[str], tmp_path: Path) -> None:
    place = amd(tmp_path, *AMD["Radeon PRO W7900, starved"][0], bits=0)
    if on_cpu:  # the driver for computing knows no holder
        (tmp_path / f"sys/class/kfd/kfd/proc/{OURS}/vram_4711").unlink()
    readings = [with_owners(read_now(place, None, None), place, {400}, on_cpu) | {"step": step} for step in range(10)]
    assert readings[0]["gpus"][0]["ours"] is (not on_cpu)
    assert [one["sign"] for one in signs(readings)] == signs_told


def test_a_stranger_on_a_card_that_the_run_does_not_use_shares_nothing(tmp_path: Path) -> None:
    place = amd(tmp_path, *AMD["Instinct MI210, shared"][0], shared=True)
    (tmp_path / f"sys/class/kfd/kfd/proc/{OURS}/vram_4711").unlink()
    readings = [with_owners(read_now(place, None, None), place, {400}) | {"step": step} for step in range(10)]
    assert readings[0]["gpus"][0]["ours"] is False and list(readings[0]["gpus"][0]["others"]) == [str(THEIRS)]
    assert signs(readings) == []


@pytest.mark.parametrize(
    ("card", "gone"),
    [
        ({"watts": 318.0, "watts_cap": 320.0, "watts_usual": 450.0}, {"watts_cap": None}),
        ({"fan": 1.0, "celsius": 70.0}, {"fan": None}),
        ({"fan": 0.0, "celsius": 90.0}, {"celsius": None}),
        ({"celsius": 91.0, "celsius_limit": 90.0}, {"celsius": None, "celsius_limit": None}),
    ],
)
def test_a_driver_that_once_told_nothing_takes_no_sign_away(card: Json, gone: Json) -> None:
    seen = card_of("card", **card) | {"others": None}
    whole = [{"step": step, "time": step, "gpus": [seen]} for step in range(10)]
    told = signs(whole)
    assert told and signs([*whole[:9], whole[9] | {"gpus": [seen | gone]}]) == told, "the last reading lacks what is told of it"


def test_the_sampler_knows_a_run_on_the_cpu_by_its_orders(tmp_path: Path) -> None:
    (tmp_path / "attempts/002").mkdir(parents=True)
    (tmp_path / "attempts/002/launch.json").write_text('{"settings": {"device": "cpu"}}')
    newest_one = keep._newest_attempt(tmp_path)
    assert newest_one == tmp_path / "attempts/002" and keep._on_cpu(tmp_path, newest_one)
    (tmp_path / "command.json").write_text("{}")
    assert not keep._on_cpu(tmp_path, newest_one), "what a command of others trains on is not known"
    assert not keep._on_cpu(tmp_path / "none", None)


def test_of_a_driver_that_hangs_no_old_reading_is_told_as_new(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Prometheus took a card's last temperature for its present one for as long as the page was up."""
    hang, answers = threading.Event(), iter([{"gpus": []}])

    def read(_reader: MachineReader) -> Json:
        found = next(answers, None)
        return found if found is not None else {"gone": hang.wait(60)}

    monkeypatch.setattr(MachineReader, "read", read)
    monkeypatch.setattr(now, "EVERY_S", 0.01)
    sampler = Sampler(Place(tmp_path))
    sampler.start()
    wait_until(lambda: sampler.latest == {"gpus": []})
    monkeypatch.setattr(now, "STALE_S", 0.0)
    assert sampler.latest == {} and not metrics({}, sampler.latest).count("holdfast_machine")
    sampler.end()
    hang.set()


def test_what_is_kept_stays_small_and_covers_the_whole_run(tmp_path: Path) -> None:
    file = tmp_path / "readings.jsonl"
    keeper = Keeper(file, most_bytes=20_000)
    for step in range(5000):
        keeper.add({"time": float(step), "step": step, "gpus": [], "processors_busy": 0.5})
        assert file.stat().st_size <= 20_000
    found = kept(file)
    assert found[0]["step"] == 0 and found[-1]["step"] > 4900 and 100 < len(found) < 1000
    assert keeper.every_s > 2 and Keeper(file).every_s > 1, "whoever goes on reads as often as the one before"
    file.write_bytes(b"torn{\n" + file.read_bytes()[:-5])
    assert len(kept(file)) == len(found) - 1 and len(list(read_sound_lines(file))) == len(found) - 1
    assert newest(file) == [], "a damaged line: nothing is told, nothing breaks"


def test_a_pause_of_the_run_or_a_sleep_of_the_machine_between_two_readings_makes_no_later_ones_rare(tmp_path: Path) -> None:
    file = tmp_path / "readings.jsonl"
    for pause in ([], [2.0], [8 * 3600.0], [2.0] * 12 + [8 * 3600.0], [8 * 3600.0] + [2.0] * 12, [64.0] * 12 + [8 * 3600.0, 1.0]):
        times = [sum(pause[:number]) for number in range(len(pause) + 1)]
        file.write_text("".join(json.dumps({"time": at, "gpus": []}) + "\n" for at in times))
        assert Keeper(file).every_s == (64.0 if 64.0 in pause else 2.0), pause


def test_readings_in_words_and_figures(tmp_path: Path) -> None:
    place = amd(tmp_path, *AMD["RX 6800 XT, too hot"][0], bits=HEAT)
    reading = with_owners(read_now(place, None, None), place, {400}) | {"disk_free_bytes": 5 * GIB, "step": 1, "time": 1.0}
    machine, gpu = told(reading)
    assert machine == "5.0 GiB of disk free"
    assert gpu == "GPU 0 (Radeon RX 6800 XT): 97% busy, memory 8.0 of 16.0 GiB, 109 °C, fan 99%, 210 of 255 W, slowed down by heat"
    assert figures(reading)["gpu0/celsius"] == 109.0 and json.dumps(reading)
    assert seen_signs([reading] * 20) and "100% of the run" in seen_signs([reading] * 20)[0]
    assert ("GPU 0: temperature", "109 °C, at most 109 °C") in list(summed([reading] * 3))
