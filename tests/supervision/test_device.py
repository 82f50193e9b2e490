"""The device is part of a run's settings: where it is not there, nothing else computes in its place.

A run is trained here, on the CPU, and then its timeline is made to say that it was planned for a GPU.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conftest import events, holdfast, lines, settings_with
from holdfast.base.files import write_json
from holdfast.book import cards_of
from holdfast.config.config import Config, Run
from holdfast.diagnosis.diagnose import diagnose_failure
from holdfast.processes.pauses import Pauses
from holdfast.run.folder import RunFolder
from holdfast.run.timeline import Entry, add_entry
from holdfast.run.types import Ending, FailureReport
from holdfast.supervision.launch import trainer_launch
from holdfast.supervision.policy.ledgers import OF_TRAINER, PastAttempt
from holdfast.supervision.policy.next_move import of_death, of_gpu
from holdfast.trainer.common import device
from holdfast.trainer.jobs import torch_facts
from holdfast.trainer.model import load
from holdfast.trainer.model.load import checkpoint_layers
from support.architectures import ARCHITECTURES, task_of
from support.known import known
from support.world import Clock, new_run

FINDS_NONE = "torch finds no GPU (RuntimeError: No CUDA GPUs are available)"


def failure_report(*kernel: str) -> FailureReport:
    ending = Ending("device_gone", 71, 5.0, {"reason": FINDS_NONE})
    return FailureReport(2, ending, None, None, (), (f"holdfast: {FINDS_NONE}",), 4, 4, 0.0, 8 << 30, 8 << 30, kernel_messages=kernel)


def planned_for(run: Path, device: str | None) -> None:
    """Rewrite the first entry of a run's timeline."""
    first, *rest = lines(run / "timeline.jsonl")
    first["settings"].pop("device", None)
    first["settings"] |= {"device": device} if device else {}
    (run / "timeline.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in [first, *rest]))


def extended(config_of: Callable[..., Path], run: Path, **sections: Any) -> dict[str, Any]:
    """Train a finished run two steps further; what its summary then says, with the exit code."""
    done = holdfast("train", config_of(train={"steps": 6}, run=sections), "--run", run, "--extend", "--json")
    assert done.stdout, done.stderr
    return {"code": done.returncode, "said": done.stderr, **json.loads(done.stdout)}


@pytest.fixture
def run(config_of: Callable[..., Path], tmp_path: Path) -> Path:
    done = holdfast("train", config_of(train={"steps": 4}, run={"device_s": 0}), "--run", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "run" / "timeline.jsonl")[0]["settings"]["device"] == "cpu"
    return tmp_path / "run"


def test_a_run_whose_gpu_is_gone_does_not_go_on_on_the_cpu(run: Path, config_of: Callable[..., Path]) -> None:
    planned_for(run, "cuda")
    summary = extended(config_of, run, device_s=0)
    assert (summary["code"], summary["status"], summary["steps"]) == (3, "gave_up", 4)
    assert "torch finds no GPU" in summary["reason"] and "rerun the same command to resume" in summary["said"]
    assert [event["step"] for event in events(run, "device_gone")] == [4]
    trial = holdfast("trial", run, "--step", "3")
    assert trial.returncode == 1 and "the GPU is gone" in trial.stdout
    there = holdfast("trial", run, "--step", "3", "--set", "device=cpu")
    assert there.returncode == 0, there.stderr


@pytest.mark.long  # tests/supervision/test_loop.py holds the decision
def test_it_goes_on_there_where_the_config_says_so(run: Path, config_of: Callable[..., Path]) -> None:
    file = run / "config.yaml"
    file.write_text(file.read_text().replace("allow_cpu: false", "allow_cpu: true"))
    planned_for(run, "cuda")
    summary = extended(config_of, run, device_s=0, allow_cpu=True)
    assert (summary["code"], summary["steps"]) == (0, 6), summary["said"]
    last = lines(run / "timeline.jsonl")[-1]
    assert last["from_step"] == 5 and last["settings"]["device"] == "cpu" and "run.allow_cpu" in last["reason"]
    assert not events(run, "device_back")


def test_a_run_folder_from_before_goes_on_with_what_there_is(run: Path, config_of: Callable[..., Path]) -> None:
    planned_for(run, None)
    assert extended(config_of, run, device_s=0)["code"] == 0


@pytest.mark.parametrize(
    ("answers", "device_s", "stop_after_s", "last", "events"),
    [
        ("there", 9, 99, "there", []),
        ("gone gone gone there", 9, 99, "there", ["device_gone", "device_back"]),
        ("gone gone gone gone gone", 4, 99, "gone", ["device_gone"]),
        ("gone", 0, 99, "gone", ["device_gone"]),
        ("gone gone", 9, 0.5, "gone", ["device_gone"]),
    ],
    ids=["there", "back", "away for too long", "not to be looked for", "stopped meanwhile"],
)
def test_whatever_needs_the_gpu_looks_for_it_and_tells_so_once(
    answers: str, device_s: float, stop_after_s: float, last: str, events: list[str], tmp_path: Path
) -> None:
    run, said = new_run(tmp_path / "run", device_s=device_s), []
    clock, script = Clock(asleep=lambda: None), iter(answers.split())
    pauses = Pauses(run, said.append, clock)
    answer = pauses.until_found(lambda: next(script), "gone", "nothing found", lambda: clock.now > stop_after_s)
    assert answer == last
    assert [event["event"] for event in run.events()] == events
    assert len([line for line in said if "looking for it again" in line]) == (len(events) > 0 and device_s > 0)


@pytest.mark.parametrize(
    ("version", "wsl", "own", "grows"),
    [
        ("2.13.0+cu130", False, {}, "expandable_segments:True"),
        ("2.13.0+cu130", True, {}, None),
        ("2.13.0+cu130", False, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}, None),
        ("2.13.0+rocm7.2", False, {}, None),
        ("2.13.0+cpu", False, {}, None),
    ],
)
def test_segments_may_grow_on_nvidias_cards_where_the_user_says_nothing_else(
    version: str, wsl: bool, own: dict[str, str], grows: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    run = RunFolder(tmp_path)
    write_json(run.machine_file, {"torch": {"version": version}, "os": {"wsl": wsl}})
    add_entry(run.timeline_file, Entry(1, settings_with(device="cuda").model_dump(), "the plan"))
    environment = trainer_launch(run).env
    assert environment.get("PYTORCH_CUDA_ALLOC_CONF") == grows
    assert environment.get("PYTORCH_NVML_BASED_CUDA_CHECK") == ("1" if "+cu" in version else None)


def test_a_run_that_has_left_its_cards_for_the_cpu_has_no_rank_for_each_of_them(tmp_path: Path) -> None:
    run, card = RunFolder(tmp_path), {"name": "X", "arch": "sm_90", "memory_bytes": 80 << 30}
    write_json(run.machine_file, {"torch": {"version": "2.13.0+cu130", "devices": [card, card]}, "gpus": [card | {"vendor": "nvidia"}] * 2})
    config = Config.model_validate({"model": "tiny", "data": {"files": "rows"}, "train": {"steps": 5, "ranks": "auto"}})
    for device_of_run, ranks in (("cuda", 2), ("cpu", 1)):
        add_entry(run.timeline_file, Entry(1, settings_with(device=device_of_run).model_dump(), "the plan"))
        assert trainer_launch(run, config).ranks == ranks


def test_a_limit_of_threads_is_no_fault_of_the_models_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(load, "_from_folder", refuse)
    facts: Any = SimpleNamespace(folder="model")
    with pytest.raises(RuntimeError, match="start new thread"):
        load._read(facts, torch.float32, "sdpa", torch.device("cpu"), torch.device("cpu"))


def test_on_a_gpu_no_sum_is_rounded_on_the_way_and_cudnns_attention_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    products = torch.backends.cuda.matmul
    monkeypatch.setattr(device, "planned_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    before = (torch.get_num_threads(), torch.backends.cuda.cudnn_sdp_enabled(), products.allow_bf16_reduced_precision_reduction)
    try:
        device.prepare_torch(settings_with(device="cuda", threads=1))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert not products.allow_bf16_reduced_precision_reduction and not products.allow_fp16_reduced_precision_reduction
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(False)
        torch.backends.cuda.enable_cudnn_sdp(before[1])
        products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = before[2]


def test_layers_that_are_computed_again_keep_no_random_state(monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_of(ARCHITECTURES["qwen2"]())
    assert checkpoint_layers(task.base, 1) > 1
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_rng_state", lambda: asked.append(1))
    with task.own_attention():
        task.base.train()(input_ids=torch.arange(3, 9)[None], labels=torch.arange(3, 9)[None]).loss.backward()
    assert not asked, "dropout is a hash: nothing to bring back"


def test_it_is_looked_for_until_its_time_is_over() -> None:
    asked = Run(device_s=60)
    assert [of_gpu(known(failure_report(), asked=asked), away).remedy for away in (0.0, 59.0, 60.0)] == ["wait", "wait", "none"]
    assert of_gpu(known(failure_report(), asked=Run(device_s=60, allow_cpu=True)), 61.0).remedy == "cpu"


def test_a_gpu_that_was_away_does_not_count_against_what_comes_after() -> None:
    away, failed = (
        PastAttempt(None, "device_access_denied", "device_gone", None, False),
        PastAttempt(5, "gpu_kernel_fault", "error", None, False),
    )
    history = [failed, *[away] * 40, failed]
    error = FailureReport(3, Ending("error", 1), 5, "step", (1,), (), 4, 4, 0.0, None, None)
    assert of_death(known(error, history, "gpu_kernel_fault")).goes_on
    last = of_death(known(error, [failed] * (OF_TRAINER.same - 1) + history[1:], "gpu_kernel_fault"))
    assert not last.goes_on, "nor does it hide that one failure repeats"


@pytest.mark.parametrize(
    ("kernel", "cause"),
    [
        ((), "device_access_denied"),
        (("NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.",), "hardware_fault"),
        (
            ("NVRM: API mismatch: the client has version 535.161.08, but this kernel module has version 535.183.01.",),
            "driver_or_firmware",
        ),
    ],
)
def test_the_kernels_log_says_why_it_is_gone(kernel: tuple[str, ...], cause: str) -> None:
    assert diagnose_failure(failure_report(*kernel), cards_of("failures")).cause == cause


@pytest.mark.parametrize(("hip", "vendor", "arch"), [("6.2.41133", "amd", "gfx1100"), (None, "nvidia", "sm_90")])
def test_torch_names_a_card_as_its_vendor_does(
    hip: str | None, vendor: str, arch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = SimpleNamespace(gcnArchName="gfx1100:xnack-", major=9, minor=0, name="a card", total_memory=5, is_integrated=1)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    torch_facts.probe()
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    assert device == {"vendor": vendor, "arch": arch, "name": "a card", "memory_bytes": 5, "integrated": True}


_BLOCKS = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
libc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in fields.split()]})
before = libc.mallinfo2().arena
for _ in range(20):
    block = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(block), 64, 8 << 20) == 0
    beside = libc.malloc(80)
    libc.free(block)
    libc.free(ctypes.c_void_p(beside))
print(libc.mallinfo2().arena - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_block_that_was_freed_serves_the_next_one(tmp_path: Path) -> None:
    """As torch asks for a tensor's numbers and for what describes it; glibc by itself lets the small block keep the big ones apart."""
    run = RunFolder(tmp_path)
    add_entry(run.timeline_file, Entry(1, settings_with().model_dump(), "the plan"))
    told = {name: value for name, value in trainer_launch(run).env.items() if value is not None}
    done = subprocess.run([sys.executable, "-S", "-c", _BLOCKS], env=os.environ | told, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 3 * (8 << 20), done.stdout
