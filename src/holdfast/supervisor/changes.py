"""Which settings of an unfinished run may change, and how they are taken up. All others are another run's."""

from __future__ import annotations

from holdfast.core.config.config import Config
from holdfast.core.files import read_json
from holdfast.core.run.folder import RunFolder, differences
from holdfast.ui.terminal import Terminal

_FREE = (
    *("evaluate.generate:", "evaluate.max_new_tokens:"),
    *("save.every:", "save.min_every:", "save.max_every:", "save.keep:", "save.keep_every:"),
)  # keys that change neither weights nor rows, nor where the state lies


def take_up_changes(run: RunFolder, old: Config, new: Config, terminal: Terminal) -> Config:
    """The run's config with those changes of `new` that may be made while it is not finished, on record and told.

    The old one where another change will be refused.
    """
    changed = differences(old, new)
    changes = [change for change in changed if change.startswith(_FREE)]
    others = [change for change in changed if not change.startswith((*_FREE, "train.steps:", "train.epochs:"))]
    if not changes or others or (read_json(run.summary_file) or {}).get("status") == "finished":
        return old
    evaluate = old.evaluate.model_copy(update={key: getattr(new.evaluate, key) for key in ("generate", "max_new_tokens")})
    places = {key: getattr(old.save, key) for key in ("snapshot_dir", "flush_snapshots")}
    taken = old.model_copy(update={"evaluate": evaluate, "save": new.save.model_copy(update=places)})
    run.write_config(taken)
    run.event("config_changed", changes=changes)
    terminal.tell(f"from here on: {'; '.join(changes)}")
    return taken
