"""Which base model a run belongs to: its files' hashes and, from the hub, its commit, in plan.json. Loads no weights."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.locks import hold
from holdfast.base.safe_open import open_regular
from holdfast.base_model.folder import ModelFacts, hub_name, read_model, weight_files
from holdfast.config.config import Config
from holdfast.run.folder import RunFolder
from holdfast.run.plan import Base, read_plan, write_plan

_SAMPLES, _SAMPLE_BYTES, _SAMPLED = 64, 1 << 16, "sampled:"  # of a weight file: a fine-tune changes nearly every byte of one
_BESIDE = (
    *("config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer.model", "tokenizer_config.json"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
)


def identity(model: ModelFacts, like: Base | None = None, whole: bool = True) -> Base:
    """Return what plan.json says of a base model. like: what one says that has samples of large tokenizers, too; not whole: so of each."""
    before, weights = like.files if like else {}, weight_files(model.folder)
    wanted = [*(model.folder / name for name in _BESIDE), *weights]
    few = {file.name for file in wanted if not whole or file in weights or before.get(file.name, "").startswith(_SAMPLED)}
    return Base(commit=_commit(model.folder), files={file.name: _hash(file, file.name in few) for file in wanted if file.is_file()})


def pinned(name: str, model: ModelFacts) -> str:
    """Return the name under which a run keeps its base model: on the hub, with the commit found, so that no other is fetched later."""
    commit = _commit(model.folder)
    return name if commit is None or Path(name).is_dir() else f"{hub_name(name)[0]}@{commit}"


def follow_pinned(asked: str, begun: str) -> str:
    """Return the model a run begun with a commit goes on with: that commit, unless another commit or model is asked for."""
    (name, revision), (own, commit) = hub_name(asked), hub_name(begun)
    return begun if commit and name == own and not _is_commit(revision or "") else asked


def changed(run: RunFolder, model: ModelFacts) -> str | None:
    """Describe what of the base model has changed since the run began; None where nothing has, or the run is older than this check."""
    plan = read_plan(run.plan_file)
    if plan is None or plan.base is None:
        return None
    files, now = plan.base.files, identity(model, plan.base).files
    differing = sorted(name for name in files.keys() | now.keys() if files.get(name) != now.get(name))
    if not differing:
        return None
    told = [f"{name} is {'missing' if name not in now else 'new' if name not in files else 'another'}" for name in differing]
    return f"{model.folder} is not the base model that this run began with: {', '.join(told[:4])}"


def take_model_elsewhere(run: RunFolder, config: Config, folder: str) -> Config:
    """Replace the model of the run's config by `folder` where that holds the same files: on another machine they lie elsewhere."""
    plan = read_plan(run.plan_file)
    if folder == config.model or not Path(folder).is_dir() or plan is None or plan.base is None:
        return config
    if identity(read_model(folder), plan.base).files != plan.base.files:
        return config
    run.event("model_elsewhere", before=config.model, now=folder)
    config = config.model_copy(update={"model": folder})
    run.write_config(config)
    return config


HINT = "put the files back as they were; for a run with these, choose another folder with --run DIR"


def refuse_changed(run: RunFolder, name: str) -> None:
    """Raise Stop(1) where the base model has changed since the run began: what was learned belongs to the weights it was learned on.

    An empty name is that of a run without one, on tables.
    """
    if name and (told := changed(run, read_model(name))):
        raise Stop(BLOCKED, told, HINT)


def take_repaired(run: RunFolder, name: str) -> None:
    """Adopt the present base weights where no trainer of the run was ever ready: nothing was learned on the old ones."""
    plan = read_plan(run.plan_file)
    if not name or plan is None or plan.base is None or any(run.path.glob("attempts/*/ready.json")):
        return
    with hold(run.trainer_lock, wait=False) as free:  # one that lives may be looking at them
        if free and (now := identity(read_model(name), plan.base)) != plan.base:
            write_plan(run.plan_file, plan.model_copy(update={"base": now}))
            run.event("base_model_taken_anew", files=sorted(key for key in now.files if now.files[key] != plan.base.files.get(key)))


def _commit(folder: Path) -> str | None:
    """Return the commit of a folder in the hub's cache, .../snapshots/COMMIT."""
    return folder.name if folder.parent.name == "snapshots" and _is_commit(folder.name) else None


def _is_commit(text: str) -> bool:
    return len(text) == 40 and set(text) <= set("0123456789abcdef")


def _hash(file: Path, sampled: bool) -> str:
    """Compute SHA-256 of a file; sampled: of a large one, of its size, its beginning and samples spread over it (4 MiB in all)."""
    digest = hashlib.sha256()
    with open_regular(file, most_bytes=1 << 62) as handle:
        size = os.fstat(handle.fileno()).st_size
        if not sampled or size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(handle.read())
            return f"sha256:{digest.hexdigest()}"
        digest.update(str(size).encode())
        for number in range(_SAMPLES):
            handle.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            digest.update(handle.read(_SAMPLE_BYTES))
    return f"{_SAMPLED}{digest.hexdigest()}"
