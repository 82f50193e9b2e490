"""Which rows an adapter has learned: those its run was trained on, and those of the runs whose adapters that one began with."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.base.files import sha256
from holdfast.data.token_set.overlap import NONE, Keys, joined, keys_of
from holdfast.data.token_set.token_set import load_tokens, split
from holdfast.run.artifact import ARTIFACT
from holdfast.run.folder import RunFolder
from holdfast.run.plan import read_plan


class LearnedRows(NamedTuple):
    """keys: hashes of the rows; unknown: the adapter among those it began with whose rows cannot be compared, "" for none."""

    keys: Keys
    unknown: str


def run_of(path: Path) -> RunFolder | None:
    """Find the run that a path is or lies in: RUN, RUN/adapter, RUN/checkpoints/step-N; None for none."""
    for folder in (path, path.parent, path.parent.parent):
        if (folder / "config.yaml").is_file() and (folder / "run.json").is_file():
            return RunFolder(folder)
    return None


def learned_by(run: RunFolder) -> LearnedRows | None:
    """Return the rows a run has learned, with those of the adapter it began with; None where its own cannot be read."""
    own = _trained(run)
    if own is None:
        return None
    before = learned_before(run)
    return LearnedRows(joined([own, before.keys]), before.unknown)


def learned_before(run: RunFolder) -> LearnedRows:
    """Return the rows that the adapter had learned which a run began with; none where it began with none."""
    plan = read_plan(run.plan_file)
    start = plan.start_adapter if plan else None
    return learned_at(Path(start["path"]), run.config().data.chat_template, start["sha256"]) if start else LearnedRows(NONE, "")


def learned_at(folder: Path, template: str | dict[str, str] | None, digest: str | None = None) -> LearnedRows:
    """Return the rows that the adapter in `folder` has learned.

    template: data.chat_template of the rows they are compared with: written by another, the same row has other tokens.
    digest: the SHA-256 of its weights, where another may lie there by now.
    """
    run, file = run_of(folder), next((at / ARTIFACT for at in (folder, folder / "adapter") if (at / ARTIFACT).is_file()), None)
    same = file is not None and digest in (None, sha256(file))
    learned = learned_by(run) if run and same else None
    if run is None or learned is None:
        return LearnedRows(NONE, str(folder))
    alike = run.config().data.chat_template == template
    return learned if alike else LearnedRows(learned.keys, learned.unknown or str(folder))


def _trained(run: RunFolder) -> Keys | None:
    try:
        tokens = load_tokens(run.data_file)
    except (OSError, ValueError):
        return None
    config = run.config()
    training = split(tokens, config.data, config.train.seed)[0]
    keys = keys_of(tokens.ids, tokens.learned, tokens.starts)
    return Keys(keys.whole[training], keys.prompt[training])
