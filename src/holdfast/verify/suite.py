"""Tasks of lm-eval, asked by lm-eval of both models: its own figures, and a paired test on its logged samples."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.child import with_env
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.files import Json, read_json
from holdfast.base.versions import install
from holdfast.export.child import ask
from holdfast.verify.stats import sign_test

_LEAST = 1e-9  # a difference of two figures of one question that is none
_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@dataclass(frozen=True)
class Suite:
    """names: tasks or groups of lm-eval; path: a folder of tasks of one's own; limit: questions a task, None for all.

    chat: whether questions go through the model's chat template.
    """

    names: tuple[str, ...]
    path: Path | None
    limit: int | None
    chat: bool


def read_suite(names: str | None, path: Path | None, limit: int | None, chat: bool) -> Suite | None:
    """Return the suite asked for on the command line. Raises Stop(2) where that is not whole, or lm-eval is not installed."""
    listed = tuple(name.strip() for name in (names or "").split(",") if name.strip())
    if not listed:
        if names is not None or path is not None or limit is not None or chat:
            raise Stop(USAGE, "--suite-path, --suite-limit and --suite-chat are for --suite NAME", "name a task of lm-eval: --suite NAME")
        return None
    if importlib.util.find_spec("lm_eval") is None:
        raise Stop(USAGE, "--suite is asked by lm-eval, and the package lm_eval is not installed", install("suite"))
    if path is not None and not path.is_dir():
        raise Stop(USAGE, f"--suite-path {path} is not a folder", "give a folder of lm-eval's task files (YAML)")
    if limit is not None and limit < 1:
        raise Stop(USAGE, "--suite-limit counts from 1", "leave it out for all questions")
    return Suite(listed, path.absolute() if path else None, limit, chat)


def ask_suite(
    suite: Suite, parts: list[Json], folder: Path, env: Mapping[str, str], held: Json | None = None, template: str | None = None
) -> Json:
    """Return `suite` of the answer: lm-eval's figures of each task under both models, and the questions one of them does better.

    parts: the models `base` and `tuned`; held: the fewer bits of the base that will do where it does not fit on a card; template: the one
    that was trained, where it is not the base's own.
    Raises Stop for an unknown task, and for data that cannot be had.
    """
    online = {name: os.environ.get(name) for name in _OFFLINE}  # models are on this machine, the data of tasks may not be
    request: Json = {"suite": list(suite.names), "path": str(suite.path) if suite.path else None, "limit": suite.limit}
    request |= {"chat": suite.chat, "template": template, "held": held}
    ask(
        "suite",
        folder,
        request | {"parts": [{key: part[key] for key in ("name", "model", "adapter")} for part in parts]},
        with_env(env, online),
    )
    found = {part["name"]: read_json(folder / f"{part['name']}.suite.json") or {} for part in parts}
    tasks = [_paired(name, one, found["tuned"]["tasks"][name]) for name, one in found["base"]["tasks"].items()]
    return {"package": f"lm_eval {found['base']['package']}", "names": list(suite.names), "tasks": tasks}


def _paired(name: str, base: Json, tuned: Json) -> Json:
    """Compare one task by its first metric that has a number for every question: `lm_eval` has all of them.

    Exact sign test of the questions that one of the two does better, which for right and wrong is McNemar's.
    """
    answer: Json = {"task": name, "version": base["version"], "lm_eval": {"base": base["results"], "tuned": tuned["results"]}}
    if {number: one["hash"] for number, one in base["samples"].items()} != {
        number: one["hash"] for number, one in tuned["samples"].items()
    }:
        raise Stop(BLOCKED, f"lm-eval asked the two models other questions of {name}", "a task that draws its questions cannot be paired")
    metric = _metric(base)
    if metric is None:
        return answer | {"metric": None, "asked": len(base["samples"])}
    better = 1.0 if base["higher_is_better"].get(metric.partition(",")[0], True) else -1.0
    pairs = [(one["values"][metric], tuned["samples"][number]["values"][metric]) for number, one in base["samples"].items()]
    ahead = [better * (other - one) for one, other in pairs]
    only_tuned, only_base = sum(one > _LEAST for one in ahead), sum(one < -_LEAST for one in ahead)
    return answer | {
        "metric": metric,
        "higher_is_better": better > 0,
        "asked": len(pairs),
        "base": math.fsum(one for one, _ in pairs) / len(pairs),
        "tuned": math.fsum(other for _, other in pairs) / len(pairs),
        "only_base": only_base,
        "only_tuned": only_tuned,
        "p_value": sign_test(only_tuned, only_base),
    }


def _metric(task: Json) -> str | None:
    """Return the first of lm-eval's figures that every question has; None where they are of the whole set, as a perplexity is."""
    samples = [*task["samples"].values()]
    return next((key for key in task["results"] if samples and all(key in one["values"] for one in samples)), None)


def paired_tests(suite: Json | None) -> dict[str, Json]:
    """Return the tasks with a paired test, which go into the verdict."""
    return {f"suite {one['task']}": one for one in (suite or {"tasks": []})["tasks"] if one["metric"]}
