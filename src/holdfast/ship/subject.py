"""What is to be shipped: a run's adapter or any PEFT folder, with the base model it belongs to. Loads no weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import orjson

from holdfast.core.errors import BLOCKED, USAGE, Stop
from holdfast.core.facts.model_folder import ModelFacts, read_model
from holdfast.core.files import Json, read_json, sha256
from holdfast.core.run.base_model import changed, identity
from holdfast.core.run.checkpoint import ADAPTER_CONFIG, ARTIFACT
from holdfast.core.run.folder import RunFolder
from holdfast.core.run.plan import read_plan


@dataclass(frozen=True)
class Subject:
    """An adapter, its base model, and the run that made it where that is known.

    base_name: as the run or the adapter names it; facts: of the base model's folder.
    """

    name: str
    adapter: Path
    config: Json
    base_name: str
    facts: ModelFacts
    run: RunFolder | None

    @property
    def weights(self) -> Path:
        return self.adapter / ARTIFACT

    def hashes(self) -> Json:
        """What an export, a verdict and the registry say of where they come from."""
        plan = read_plan(self.run.plan_file) if self.run else None
        return {
            "run": str(self.run.path) if self.run else None,
            "adapter": str(self.adapter),
            "adapter_sha256": sha256(self.weights),
            "base": self.base_name,
            "base_sha256": hashlib.sha256(orjson.dumps(identity(self.facts).files, option=orjson.OPT_SORT_KEYS)).hexdigest(),
            "data_sha256": plan.data_sha256 if plan else None,
        }


def read_subject(path: Path, base: str | None = None) -> Subject:
    """The adapter that `path` means: a run folder, a checkpoint of one, or a folder that PEFT saved.

    base: where the base model is, if not where the adapter says. Raises Stop where there is no adapter, its file is not the one
    the run ended with, or the base is gone or another one than it was trained on.
    """
    path = path.expanduser().resolve()
    if not path.is_dir():
        raise Stop(USAGE, f"{path} is not a folder", "give a finished run, or a folder that PEFT saved")
    run = _run_of(path)
    folder = path / "adapter" if (path / "config.yaml").is_file() else path
    if run:
        run.refuse_foreign()
    config = _adapter_config(folder, run)
    given = run.config().model if run else config.get("base_model_name_or_path")
    named = base or given
    if not isinstance(named, str) or not named:
        raise Stop(BLOCKED, f"{folder}/{ADAPTER_CONFIG} names no base model", "give it with --base DIR")
    try:
        facts = read_model(named)
    except Stop as stop:
        text = f"the base model of {folder} cannot be had: {stop.message}"
        raise Stop(stop.code, text, f"{stop.hint}; or say where it is now with --base DIR") from None
    _refuse_changed(run, folder, facts)
    name = run.path.name if run else path.name
    return Subject(name, folder, config, str(named), facts, run)


def _run_of(path: Path) -> RunFolder | None:
    """The run that a path is or lies in: RUN, RUN/adapter, RUN/checkpoints/step-N."""
    for folder in (path, path.parent, path.parent.parent):
        if (folder / "config.yaml").is_file() and (folder / "run.json").is_file():
            return RunFolder(folder)
    return None


def _adapter_config(folder: Path, run: RunFolder | None) -> Json:
    config = read_json(folder / ADAPTER_CONFIG)
    if config is not None and (folder / ARTIFACT).is_file():
        return config
    for kind in ("model", "network"):
        if run and not folder.exists() and (run.path / kind).is_dir():
            text = f"{run.path} left a whole {kind} and no adapter: there is nothing to put on a base"
            raise Stop(BLOCKED, text, f"{run.path / kind} can be used as it is")
    if run and not folder.exists():
        text = f"{run.path} has no adapter yet: the run is not finished"
        raise Stop(BLOCKED, text, f"finish it with the command that began it, or give one of {run.checkpoints}")
    lacking = " and ".join(name for name in (ADAPTER_CONFIG, ARTIFACT) if not (folder / name).is_file())
    if not lacking:
        raise Stop(BLOCKED, f"{folder}/{ADAPTER_CONFIG} is not a JSON object", "save the adapter again")
    raise Stop(USAGE, f"{folder} holds no adapter: {lacking} missing", "give a finished run, or a folder that PEFT saved")


def _refuse_changed(run: RunFolder | None, folder: Path, facts: ModelFacts) -> None:
    if run is None:
        return
    summary = read_json(run.summary_file) or {}
    wanted = summary.get("adapter_sha256")
    if folder == run.adapter and wanted and sha256(folder / ARTIFACT) != wanted:
        text = f"{folder / ARTIFACT} is not the adapter this run ended with (sha256 {wanted[:16]})"
        raise Stop(BLOCKED, text, "restore it, or export the folder it came from instead")
    if told := changed(run, facts):
        raise Stop(BLOCKED, told, "give the base model of then with --base DIR: an adapter is worth nothing on another one")
