"""Whether ranks may train one run together: the same rows, program and kind of device. Asked once, when they meet."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

import torch

from holdfast.base.files import Json, sha256
from holdfast.base.versions import __version__
from holdfast.config.settings import Settings
from holdfast.trainer.common.device import planned_device
from holdfast.trainer.common.job import Job
from holdfast.trainer.common.refuse import Refusal
from holdfast.trainer.distributed.rank import Rank

_WORDS = {
    "holdfast": "the version of holdfast",
    "torch": "the version of torch",
    "device": "the kind of device",
    "rows": "the file of tokenised rows (data.safetensors)",
    "timeline": "the timeline of settings (timeline.jsonl)",
}


def refuse_unlike(rank: Rank, job: Job, settings: Settings) -> None:
    """Raise Refusal, on every rank alike, where one differs from the first in what its gradients follow from."""
    if rank.size == 1:
        return
    stat = job.run.data_file.stat()
    own: Json = {
        "holdfast": __version__,
        "torch": torch.__version__,
        "device": _device(settings),
        "timeline": [[entry.from_step, entry.settings] for entry in job.timeline],
        "host": platform.node(),
        "file": [platform.node(), stat.st_dev, stat.st_ino],
    }
    told = rank.exchange(own)
    if job.config.cuts_trained:
        _refuse_apart(rank, settings, sorted({one["host"] for one in told}))
    if any(one["file"] != told[0]["file"] for one in told):  # else it is one file, whose hash the supervisor has seen
        told = [one | more for one, more in zip(told, rank.exchange({"rows": sha256(job.run.data_file)}), strict=True)]
    for number, one in enumerate(told):
        for name, words in _WORDS.items():
            if one.get(name) != told[0].get(name):
                values = "" if name == "timeline" else f": {_short(told[0][name])} on rank 0, {_short(one[name])} on rank {number}"
                text = f"{words} differs between ranks{values} ({one['host']})"
                hint = "ranks must be alike, and see one run folder: start them on machines of one kind, with --run on a disk they share"
                raise Refusal("launch_misconfigured", text, hint)


def _refuse_apart(rank: Rank, settings: Settings, hosts: list[str]) -> None:
    """Raise Refusal where ranks that hold pieces of what is trained could not read each other's, or have none."""
    if len(hosts) > 1:
        text = f"train.fsdp with adapter.type full keeps each rank's state in its machine's memory, and these are on {', '.join(hosts)}"
        raise Refusal("launch_misconfigured", text, "start all ranks on one machine, or leave train.fsdp out; start afresh with --run DIR")
    if settings.shards % rank.size:
        text = f"train.reduction_parts is {settings.shards} in this run, and {rank.size} ranks cannot share them"
        raise Refusal(
            "launch_misconfigured", text, "give a number of ranks that divides it, or start afresh with --run DIR train.reduction_parts=8"
        )


def _short(value: object) -> str:
    return str(value)[:80]


def _device(settings: Settings) -> str:
    device = planned_device(settings)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    capability: Callable[[], str] = torch.backends.cpu.get_cpu_capability
    return f"CPU {platform.machine()} {capability()} {settings.threads} threads {os.environ.get('ATEN_CPU_CAPABILITY', '')}".strip()
