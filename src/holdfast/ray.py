"""A run on a Ray cluster: `holdfast.ray.trainer(config)` is a Ray `TorchTrainer` whose workers are holdfast's ranks.

    import holdfast.ray

    result = holdfast.ray.trainer("my-run.yaml", run="/shared/runs/mine", workers=(1, 4), gpu=True).fit()
    print(result.metrics["artifact_sha256"], result.checkpoint)

Ray places the workers and starts them again where one dies or a node is lost; each worker starts `holdfast train` on its node,
which goes on from the newest state. holdfast recovers from a trainer's death itself, and Ray hears nothing of it. The run folder must be
one that all nodes see; with `save.to` a state is at a second place, too. Needs `pip install '.[ray]'` in holdfast's checkout.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ray import train as ray_train
from ray.train.backend import Backend
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

from holdfast.base.child import module_command
from holdfast.base.errors import AGAIN, DONE, Stop
from holdfast.base.files import Json, read_json, write_json
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_name, checkpoint_steps, newest_valid

_LOOK_S = 1.0
_PR_SET_PDEATHSIG = 1
_LEAVING_S = 60.0  # for the other ranks, once the first has ended
_NUMBERS = ("step", "loss", "grad_norm", "lr", "tokens", "seconds")


def trainer(
    config: str | Path | Mapping[str, Any],
    *,
    run: str | Path,
    workers: int | tuple[int, int] = 1,
    gpu: bool = False,
    overrides: Sequence[str] = (),
    scaling: ray_train.ScalingConfig | None = None,
    run_config: ray_train.RunConfig | None = None,
) -> Trainer:
    """Make the trainer of a config: a file that all nodes see, or what would stand in one.

    run: the run folder, on a disk that all nodes share. workers: how many ranks, or (fewest, most) for as many as there are; with
    train.reduction_parts a power of two. overrides: key=value, as on the command line. scaling, run_config: Ray's own, in place of workers
    and    gpu, and of its defaults; a run_config without a failure_config starts workers again without limit, as holdfast itself gives up
    where that helps nothing.
    """
    facts = {
        "config": str(Path(config).resolve()) if isinstance(config, (str, Path)) else dict(config),
        "run": str(Path(run).resolve()),
        "overrides": list(overrides),
    }
    told = run_config or ray_train.RunConfig()
    if run_config is None or run_config.failure_config is None or run_config.failure_config.max_failures == 0:
        told.failure_config = ray_train.FailureConfig(max_failures=-1)
    return Trainer(
        _work,
        train_loop_config=facts,
        torch_config=_Place(),
        scaling_config=scaling or ray_train.ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=told,
    )


class Trainer(TorchTrainer):  # type: ignore[misc]
    """Ray's trainer; a run that holdfast gave up is an error here and no reason to start it again."""

    def fit(self) -> Any:
        """Train to the end; Ray's Result: of summary.json, and the newest checkpoint. Raises Stop where the run was given up or refused."""
        result = super().fit()
        metrics = result.metrics or {}
        if metrics.get("exit_code"):
            raise Stop(int(metrics["exit_code"]), str(metrics.get("says")), f"the run's folder is {metrics.get('run')}")
        return result


class _NoGroup(Backend):  # type: ignore[misc]
    """Ray sets up no process group: that of holdfast's ranks is in the trainers, which begin again while workers go on."""


class _Place(TorchConfig):  # type: ignore[misc]
    @property
    def backend_cls(self) -> type[Backend]:
        return _NoGroup


def _work(facts: dict[str, Any]) -> None:
    """Do each worker's part: be one rank's `holdfast train`, and report what the first one commits."""
    context = ray_train.get_context()
    meeting = broadcast_from_rank_zero(_meeting())
    variables = {
        "RANK": context.get_world_rank(),
        "WORLD_SIZE": context.get_world_size(),
        "LOCAL_RANK": context.get_local_rank(),
        "MASTER_ADDR": meeting["address"],
        "MASTER_PORT": meeting["port"],
        "HOLDFAST_RAY": 1,
    }
    own = os.environ | {name: str(value) for name, value in variables.items()}
    with _config_file(facts["config"]) as config, tempfile.TemporaryFile("w+") as errors:
        command = module_command("holdfast", "train", config, *facts["overrides"], "--run", facts["run"], "--json")
        child = subprocess.Popen(
            command, env=own, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, preexec_fn=_end_with_parent
        )
        try:
            _follow(child, RunFolder(Path(facts["run"])), errors)
        finally:
            child.kill()
            child.wait()


def _follow(child: subprocess.Popen[bytes], run: RunFolder, errors: Any) -> None:
    """Report steps and checkpoints until the first rank's command has ended. Raises RuntimeError where Ray is to start all again."""
    first = ray_train.get_context().get_world_rank() == 0
    seen = _FirstRankNews(run)
    while True:
        news = broadcast_from_rank_zero(seen.news(child.poll()) if first else None)
        if any(news[name] is not None for name in ("row", "checkpoint", "code")):
            _report(news, run, first)
        if news["code"] is not None:
            break
        if not first and child.poll() not in (None, DONE):
            raise RuntimeError(f"this rank's command ended with exit code {child.returncode}: {_last(errors)}")
        time.sleep(_LOOK_S)
    if news["code"] == AGAIN or news["code"] < 0:
        raise RuntimeError(f"the first rank's command ended with exit code {news['code']}, to be started again: {_last(errors)}")
    if first:
        for line in _lines(errors):
            print(line, flush=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_LEAVING_S)


def _report(news: Json, run: RunFolder, first: bool) -> None:
    """Report as all workers do together; the first one with a copy of the newest checkpoint."""
    metrics: Json = {name: news["row"].get(name) for name in _NUMBERS} if news["row"] else {}
    if news["code"] is not None:
        summary = read_json(run.summary_file) or {}
        kept = {name: summary.get(name) for name in ("status", "steps", "loss", "attempts", "goodput", "artifact_sha256")}
        metrics |= kept | {"exit_code": news["code"], "says": news["says"], "run": str(run.path)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        checkpoint = _copy(news, run, Path(folder) / "state", metrics) if first else None
        ray_train.report(metrics, checkpoint=checkpoint)


def _copy(news: Json, run: RunFolder, place: Path, metrics: Json) -> ray_train.Checkpoint | None:
    """Copy the newest checkpoint for Ray to keep. At the end there always is one: Ray's Result has the metrics of its last alone."""
    ended = news["code"] is not None
    name = news["checkpoint"]
    if ended and run.checkpoints.is_dir() and (newest := newest_valid(run)[0]):
        name = newest.folder.name
    if name is None and not ended:
        return None
    with contextlib.suppress(FileNotFoundError):  # pruned meanwhile: a newer one is reported next
        if name is not None:
            shutil.copytree(run.checkpoints / name, place)
    if ended:
        place.mkdir(exist_ok=True)
        write_json(place / "ended.json", metrics, durable=False)
    return ray_train.Checkpoint.from_directory(place) if place.exists() else None


class _FirstRankNews:
    """What the first rank has told so far."""

    def __init__(self, run: RunFolder) -> None:
        self.run, self.step, self.checkpoint = run, 0, 0

    def news(self, code: int | None) -> Json:
        """Return the newest row and checkpoint that were not told yet; how the command ended, and what it said."""
        row = self.run.last_step() if self.run.begun() else None
        if row is not None and row["step"] <= self.step and code is None:
            row = None
        self.step = row["step"] if row else self.step
        newer = max(checkpoint_steps(self.run), default=0) > self.checkpoint
        found = newest_valid(self.run)[0] if newer else None
        fresh = found is not None and found.step > self.checkpoint
        self.checkpoint = found.step if found is not None and fresh else self.checkpoint
        says = (read_json(self.run.summary_file) or {}).get("reason") if code else None
        return {"row": row, "checkpoint": checkpoint_name(self.checkpoint) if fresh else None, "code": code, "says": says}


def _meeting() -> Json:
    """Return where ranks meet if this is the first of them."""
    import ray

    with socket.create_server(("", 0)) as free:
        return {"address": ray.util.get_node_ip_address(), "port": free.getsockname()[1]}


@contextlib.contextmanager
def _config_file(config: str | Json) -> Iterator[Path]:
    if isinstance(config, str):
        yield Path(config)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "ray.yaml"
        file.write_text(yaml.safe_dump(config), encoding="utf-8")
        yield file


def _lines(errors: Any) -> list[str]:
    errors.seek(0)
    return [line for line in errors.read().splitlines() if line.strip()]


def _last(errors: Any) -> str:
    lines = _lines(errors)
    return lines[-1] if lines else "it said nothing"


def _end_with_parent() -> None:
    """End this child as soon as the worker does, however that was ended; another may have the run a moment later."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
