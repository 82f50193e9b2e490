"""How the children of a run that need torch are started: command, environment, settings. Starts nothing."""

from __future__ import annotations

import os

from holdfast.base.child import trainer_command, with_env
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.files import Json, read_json
from holdfast.book import cards_of
from holdfast.book.kinds.variable import VariableAdvice
from holdfast.checkup.environment import confirmed
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.machine.heap import heap_environment, is_tight
from holdfast.machine.host_memory import host_memory
from holdfast.machine.machine_file import read
from holdfast.machine.place import Place
from holdfast.machine.system import steering, usable_threads
from holdfast.planning.ranks import devices_for, processes_for
from holdfast.processes.rank_info import rank_info_of
from holdfast.run.attempt import closed, is_closed, read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.plan import read_plan
from holdfast.run.timeline import settings_in
from holdfast.run.types import Launch


def trainer_launch(run: RunFolder, config: Config | None = None) -> Launch:
    """Return how this run's trainers are started, as many as `config` asks for now; one without it.

    What changes a kernel's result is in the environment before torch is imported.
    """
    settings = settings_in(run.timeline_file)
    env: dict[str, str | None] = {
        "OMP_NUM_THREADS": str(settings.threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        **{advice.name: advice.value for advice in advised(run)},
    }
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        env["OMP_WAIT_POLICY"] = "PASSIVE"  # spinning threads make a step several times slower beside other work: benchmarks/wait_policy.py
    if not any(name.startswith("MALLOC_") or name == "LD_PRELOAD" for name in os.environ):
        wanted = heap_environment(_tight(run, settings))
        env |= {name: value for name, value in wanted.items() if name not in os.environ}
    if "ONEDNN_PRIMITIVE_CACHE_CAPACITY" not in os.environ:
        env["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "64"  # the CPU's compiled bf16 products, 0.6 MB each; a micro-batch has some 20 of them
    # without it torch before 2.10 refuses deterministic products on CUDA, which `holdfast trial` asks for
    env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    env |= _of_nvidia(run)
    env |= _of_remedies(run, settings.env)
    rank_info = rank_info_of(os.environ) if config else None
    if rank_info is not None:
        return Launch(tuple(trainer_command("train")), env | rank_info.environment(), settings, rank_info.size)
    devices = devices_for(config.train, _machine_of(run, settings), _known_devices(run)) if config else (0,)
    if config and (processes := _processes(run, config, settings)) > 1:
        devices = tuple(range(processes))
        env["OMP_NUM_THREADS"] = str(settings.threads_of_each(processes))
    return Launch(tuple(trainer_command("train")), env, settings, len(devices), devices)


def _processes(run: RunFolder, config: Config, settings: Settings) -> int:
    """Return how many processes compute the parts of a step that are computed at the same time; 1 where threads of one do.

    Each holds the model. Where memory ran out in an attempt of several, threads compute the parts from then on: the bits are the same.
    """
    plan, asked = read_plan(run.plan_file), config.train.parts_in
    if settings.at_once == 1 or settings.device != "cpu" or asked == "threads" or plan is None:
        return 1
    if asked == "processes":
        return settings.at_once
    if (living := _not_closed(run)) > 1:
        return living
    if usable_threads() < settings.at_once or parts_ran_out(run):
        return 1
    free = [size for size in (host_memory().get("MemAvailable"), plan.capacity_bytes) if size is not None]
    return processes_for(settings, plan.peak_bytes, min(free, default=None))


def _not_closed(run: RunFolder) -> int:
    """Return the processes of the newest attempt where nobody has dealt with its end, so that it may go on; 0 where there is none."""
    newest = run.newest_attempt()
    orders = None if newest is None or is_closed(newest) else read_launch_spec(newest)
    return orders.ranks if orders else 0


def parts_ran_out(run: RunFolder) -> bool:
    """True if memory ran out in an attempt of several processes."""
    for attempt in map(run.attempt, run.attempts()):
        orders, ended = read_launch_spec(attempt), closed(attempt)
        if orders and orders.ranks > 1 and ended and (ended.facts.get("diagnosis") or {}).get("cause") == "host_out_of_memory":
            return True
    return False


def _tight(run: RunFolder, settings: Settings) -> bool:
    """True if the plan takes most of the main memory that this run may use. What a plan counts of gaps depends on it."""
    plan = read_plan(run.plan_file)
    if plan is None or settings.device != "cpu":
        return False
    most = [size for size in (plan.capacity_bytes, settings.memory_limit_bytes) if size is not None]
    return is_tight(plan.peak_bytes - plan.bytes.allocator, min(most, default=None))


def _known_devices(run: RunFolder) -> list[int] | None:
    """Return the newest attempt's devices without the one found gone; None where none was: then all are tried."""
    if (newest := run.newest_attempt()) is None:
        return None
    gone, orders = (read_json(newest / "result.json") or {}), read_launch_spec(newest)
    if gone.get("kind") != "device_gone" or orders is None:
        return None
    return [device for device in orders.devices if device != gone.get("device")]


def _machine_of(run: RunFolder, settings: Settings) -> Json:
    """Return the run's machine; without its GPUs where the run has left them for the CPU."""
    machine = read_json(run.machine_file) or {}
    return machine | {"gpus": [], "torch": None} if settings.device == "cpu" else machine


def _of_remedies(run: RunFolder, env: dict[str, str | None]) -> dict[str, str | None]:
    """Return the variables that were seen to help. Raises Stop(1) for others: a folder from elsewhere could name a library or a path."""
    if not env:
        return env
    known = {name for shelf in ("remedies", "rungs") for card in cards_of(shelf).values() for name in card.env}
    if others := sorted(set(env) - known):
        text = f"{run.timeline_file} sets {', '.join(others)}, which no remedy of the book sets: holdfast did not write that"
        raise Stop(BLOCKED, text, "set it in your own environment if you want it, and remove it there")
    return env


def _of_nvidia(run: RunFolder) -> dict[str, str | None]:
    """Return the variables for torch's CUDA build: find devices without making a context, and let allocations grow, not fragment."""
    machine = read(read_json(run.machine_file) or {})
    if machine.torch is None or machine.torch.backend != "cuda":
        return {}
    env: dict[str, str | None] = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # a standby that merely imports leaves the card alone
    if not machine.wsl and not {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} & set(os.environ):
        env["PYTORCH_CUDA_ALLOC_CONF"] = (
            "expandable_segments:True"  # micro-batches differ in size; under WSL it fails, on ROCm it is unsound
        )
    return env


def advised(run: RunFolder) -> list[VariableAdvice]:
    """Return the confirmed part of the environment profile of the run's machine. The user's own variables win."""
    return confirmed((read_json(run.machine_file) or {}) | {"env": steering(Place())})


def child_environment(changes: dict[str, str | None]) -> dict[str, str]:
    """Return this process's environment with a launch's changes (None: unset)."""
    return with_env(os.environ, changes)


def measuring_environment(run: RunFolder | None) -> dict[str, str]:
    """Return the environment of a child that measures models: that of the run's trainer, where there is a run."""
    if run is not None and run.timeline_file.exists():
        return child_environment(trainer_launch(run).env)
    return child_environment({"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"})
