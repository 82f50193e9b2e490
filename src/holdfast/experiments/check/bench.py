"""What the items of `holdfast check` share: an item, the run they are about, and a way to ask for a course. Concludes nothing."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.base.files import Json
from holdfast.config.config import Config
from holdfast.experiments.laboratory import Laboratory, how
from holdfast.run.plan import RunPlan

CheckVerdict = Literal["passed", "failed", "unknown"]
MOST_TOKENS = {"cpu": 1024, "cuda": 16384}  # of a step of an experiment: what does not need whole steps is not to take minutes
TOLERANCES: dict[str, dict[str, float]] = {  # shares: of the loss, of the gradient's norm, of its size along the reference's
    "fp32": {"loss": 1e-4, "gradient": 2e-3, "scale": 1e-3, "layer": 1e-3},
    "fp16": {"loss": 2e-3, "gradient": 5e-2, "scale": 1e-2, "layer": 2e-2},
    "bf16": {"loss": 5e-3, "gradient": 2.5e-1, "scale": 2.5e-2, "layer": 8e-2},
}


@dataclass(frozen=True)
class Item:
    """One item of the page. why: what was seen, in a sentence; next: the command or setting that follows, where something failed."""

    id: str
    verdict: CheckVerdict
    numbers: Json = field(default_factory=dict)
    why: str = ""
    next: str = ""

    def as_json(self) -> Json:
        return {"id": self.id, "verdict": self.verdict, "numbers": self.numbers, "why": self.why, "next": self.next}


@dataclass
class Bench:
    """A prepared run and its laboratory. file: the config as it was given, for commands; facts: what `start` found."""

    lab: Laboratory
    config: Config
    plan: RunPlan
    file: str
    data_report: Json
    work: float = 0.0  # operations a token of a step, forward and backward
    last_run: Json | None = None
    facts: Json = field(default_factory=dict)
    until: float = math.inf  # by time.monotonic(): when an item that searches begins nothing more

    @property
    def settings(self) -> Json:
        """The settings a run would have after its own proofs."""
        keep = (
            *("device", "attention", "dtype", "frozen", "double_quant", "liger", "fused", "packing", "varlen", "own_head", "all_learn"),
            *("exact_start", "own_dropout", "rope_apart"),
        )
        known: Json = self.facts.get("settings") or {}
        return {name: known[name] for name in keep if name in known}

    @property
    def dtype(self) -> str:
        return str(self.settings.get("dtype", "fp32"))

    @property
    def device(self) -> str:
        return str(self.settings.get("device") or "cpu")

    @property
    def most_tokens(self) -> int:
        return MOST_TOKENS["cuda" if self.device == "cuda" else "cpu"]

    def course(self, settings: Json | None = None, deterministic: bool = True, **request: Any) -> Json:
        """Train a few steps under the run's settings and these changes. deterministic: False takes the run's own kernels."""
        return self.lab.ask("course", settings=self.settings | (settings or {}), deterministic=deterministic, **request)

    def command(self, *words: str) -> str:
        """Return a holdfast command about this config."""
        verb, *rest = words
        return " ".join(["holdfast", verb, shlex.quote(self.file), *rest])


def not_done(name: str, outcome: Json, following: str) -> Item:
    """Return a failed item for an experiment that crashed, hung or was refused, and how."""
    return Item(name, "failed", {"ending": outcome["ending"]}, f"the experiment did not come to its end: {how(outcome)}", following)


def losses(outcome: Json) -> list[float]:
    """Return the finite losses of a course's steps."""
    return [row["loss"] for row in outcome.get("rows", ()) if row["loss"] is not None]
