"""Have steps traced by a child that has torch, one after the other; answers are kept until code or libraries change.

What they mean, planning/memory/fit.py says.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from holdfast.base.cache import cache_folder, read_kept, write_kept
from holdfast.base.child import trainer_command, with_env
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.file_errors import file_error_in
from holdfast.base.files import Json
from holdfast.base.units import counted
from holdfast.base.wait import doing
from holdfast.base_model.folder import ModelFacts
from holdfast.config.config import Config
from holdfast.config.settings import Settings
from holdfast.planning.memory.demand import Demand

_DEADLINE_S = 300  # of one trace
_END_S = 5  # between a child's last word and its end
_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "liger-kernel", "flash-attn")
# Of train: what of them matters to a step is in the settings or the lengths.
_NOT_OF_A_STEP = {
    *("epochs", "steps", "effective_batch", "lr", "schedule", "warmup", "max_tokens", "micro_batch_tokens", "checkpointed_layers"),
    *("memory_limit", "memory_reserve", "seed", "threads", "ranks", "ranks_min", "reduction_parts", "parts_at_once", "parts_in"),
}
_UNKNOWN = "holdfast train measures what a step needs when it begins, and makes its micro-batches smaller where they do not fit"


class Tracer:
    """A child that traces steps of one model; it is started by the first question that was not answered before."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._child: subprocess.Popen[bytes] | None = None
        self._steps = 0  # asked for

    def shapes(self, config: Config, model: ModelFacts) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all weights of the model that its config describes. Raises Stop(1) where there is no such model."""
        with doing("reading the model's shapes"):
            answer = self._known({"config": _plain(config), "model": _about(model), "shapes": True})
        return {name: tuple(shape) for name, shape in answer["shapes"].items()}

    def unlike(self, config: Config, model: ModelFacts) -> tuple[str, str] | None:
        """Return (what the loaded model computes otherwise than config.json says, what to do); None where nothing. Raises Stop(1)."""
        answer = self._known({"config": _plain(config), "model": _about(model), "unlike": True})["unlike"]
        return tuple(answer) if answer else None

    def demand(self, config: Config, model: ModelFacts, settings: Settings, lengths: list[int], labels: int, how: Json) -> Demand:
        """Trace the demand of a step of these rows. how: {layers: keep only so many, curve, plain_attention}. Raises Stop(1)."""
        case = {"settings": settings.as_json(), "lengths": lengths, "labels": labels}
        self._steps += 1
        with doing(f"measuring memory on empty tensors, step {self._steps}: {counted(len(lengths), 'row')} of {max(lengths):,} tokens"):
            return Demand.model_validate(self._known({"config": _plain(config), "model": _about(model)} | case | how))

    def end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.communicate()

    def _known(self, case: Json) -> Json:
        """Return the cached answer, else ask the child."""
        place = self._kept / f"{_key(case)}.json" if self._kept and not case.get("curve") else None
        if answer := read_kept(place):
            return answer
        answer = self._ask(case)
        write_kept(place, answer)
        return answer

    def _ask(self, case: Json) -> Json:
        fresh = self._child is None
        if self._child is None:
            self._child = _started()
        told, answers = self._child.stdin, self._child.stdout
        assert told is not None and answers is not None
        with contextlib.suppress(BrokenPipeError):
            told.write(orjson.dumps(case) + b"\n")
            told.flush()
        line = _line(answers, deadline := time.monotonic() + _DEADLINE_S)
        if not fresh and not line and _crashed(self._child):  # its heap was damaged after many traces: seen with torch 2.13
            self.end()
            self._child = None
            return self._ask(case)
        try:
            answer = orjson.loads(line)
        except orjson.JSONDecodeError:
            said = _last(self._child, line) or (f"no answer within {_DEADLINE_S} s" if time.monotonic() >= deadline else "it said nothing")
            text = f"the step could not be traced: the child that does it ended ({said})"
            raise file_error_in(said) or Stop(BLOCKED, text, _UNKNOWN) from None
        if "refused" in answer:
            raise Stop(BLOCKED, answer["refused"], answer["hint"])
        if "failed" in answer:
            raise Stop(BLOCKED, f"the step could not be traced: {answer['failed']}", _UNKNOWN)
        return dict(answer)


@contextlib.contextmanager
def tracer() -> Iterator[Tracer]:
    """Yield a tracer; its child process ends with the context."""
    folder = cache_folder(os.environ)
    asked = Tracer(folder / "traces" / _made_with() if folder else None)
    try:
        yield asked
    finally:
        asked.end()


def _started() -> subprocess.Popen[bytes]:
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        trainer_command("account"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=with_env(os.environ, quiet),
    )


def _made_with() -> str:
    """Return a hash of what an answer depends on beside the question: our trainer's code and the libraries' versions."""
    root = Path(__file__).parents[1] / "trainer"
    code = sorted((str(file.relative_to(root)), file.stat().st_size, file.stat().st_mtime_ns) for file in root.rglob("*.py"))
    versions = []
    for name in _LIBRARIES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append((name, importlib.metadata.version(name)))
    return hashlib.sha256(repr((code, versions)).encode()).hexdigest()[:16]


def _key(case: Json) -> str:
    """Return the cache key of a question: of what a step's bytes depend on, and nothing of the rows, the rate or the run's length."""
    config = {name: case["config"][name] for name in ("adapter", "preference")}
    train = {name: value for name, value in case["config"]["train"].items() if name not in _NOT_OF_A_STEP}
    model = {name: case["model"][name] for name in ("config", "stored")}
    asked = case | {"config": config | {"train": train}, "model": model}
    return hashlib.sha256(orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _line(answers: Any, deadline: float) -> bytes:
    """Read the child's next line; empty where it ended, or nothing came until the deadline."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(answers, selectors.EVENT_READ)
        if not waiting.select(max(0.0, deadline - time.monotonic())):
            return b""
    return bytes(answers.readline())


def _crashed(child: subprocess.Popen[bytes]) -> bool:
    """Return whether a signal has ended a child that answers nothing."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.wait(_END_S) < 0
    return False


def _last(child: subprocess.Popen[bytes], answered: bytes) -> str:
    """End the child and return how it crashed, else the last line it printed, or its answer that is none; empty where it said nothing."""
    child.kill()
    _, said = child.communicate()
    lines = (said + b"\n" + answered).decode(errors="replace").strip().split("\n")
    return next((line for line in lines if line.startswith("Fatal Python error: ")), lines[-1])[:300]


def _plain(config: Config) -> Json:
    return config.model_dump(mode="json")


def _about(model: ModelFacts) -> Json:
    return {"folder": str(model.folder), "config": model.config, "stored": model.stored}
