"""Have steps traced by a child that has torch, one after the other. What they mean, mind/fit.py says."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from holdfast.core.config.config import Config
from holdfast.core.config.settings import Settings
from holdfast.core.errors import BLOCKED, Stop
from holdfast.core.facts.model_folder import ModelFacts
from holdfast.core.files import Json
from holdfast.mind.demand import Demand
from holdfast.world.child import trainer_command, with_env

_DEADLINE_S = 300  # of one trace
_UNKNOWN = "holdfast train measures what a step needs when it begins, and makes its micro-batches smaller where they do not fit"


@dataclass(frozen=True)
class Tracer:
    """A child that traces steps of one model."""

    child: subprocess.Popen[bytes]

    def shapes(self, config: Config, model: ModelFacts) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights of the model that its config describes. Raises Stop(1) where there is no such model."""
        answer = self._ask({"config": _plain(config), "model": _about(model), "shapes": True})
        return {name: tuple(shape) for name, shape in answer["shapes"].items()}

    def demand(self, config: Config, model: ModelFacts, settings: Settings, lengths: list[int], labels: int, how: Json) -> Demand:
        """What a step of these rows needs. how: {layers: of a model cut down to so many, curve, plain_attention}. Raises Stop(1)."""
        case = {"settings": settings.as_json(), "lengths": lengths, "labels": labels}
        return Demand.model_validate(self._ask({"config": _plain(config), "model": _about(model)} | case | how))

    def _ask(self, case: Json) -> Json:
        told, answers = self.child.stdin, self.child.stdout
        assert told is not None and answers is not None
        with contextlib.suppress(BrokenPipeError):
            told.write(orjson.dumps(case) + b"\n")
            told.flush()
        line = _line(answers, time.monotonic() + _DEADLINE_S)
        try:
            answer = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise Stop(BLOCKED, f"the step could not be traced: the child that does it ended ({_last(self.child)})", _UNKNOWN) from None
        if "refused" in answer:
            raise Stop(BLOCKED, answer["refused"], answer["hint"])
        if "failed" in answer:
            raise Stop(BLOCKED, f"the step could not be traced: {answer['failed']}", _UNKNOWN)
        return dict(answer)


@contextlib.contextmanager
def tracer() -> Iterator[Tracer]:
    """Start the child; end it."""
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        trainer_command("account"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=with_env(os.environ, quiet),
    )
    try:
        yield Tracer(child)
    finally:
        child.kill()
        child.communicate()


def _line(answers: Any, deadline: float) -> bytes:
    """The child's next line; an empty one where it ended, or nothing came in time."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(answers, selectors.EVENT_READ)
        if not waiting.select(max(0.0, deadline - time.monotonic())):
            return b""
    return bytes(answers.readline())


def _last(child: subprocess.Popen[bytes]) -> str:
    """The last thing it said."""
    child.kill()
    _, said = child.communicate()
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else f"no answer within {_DEADLINE_S} s"


def _plain(config: Config) -> Json:
    return config.model_dump(mode="json")


def _about(model: ModelFacts) -> Json:
    return {"folder": str(model.folder), "config": model.config, "stored": model.stored}
