"""Which settings of an unfinished run may change, and how they are taken up. All others are another run's."""

from __future__ import annotations

from holdfast.base.errors import USAGE, Stop
from holdfast.base.files import read_json
from holdfast.base.locks import taken
from holdfast.config.config import Config
from holdfast.report.audience import Audience
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder, differences
from holdfast.run.snapshots.memory_file import MemoryFile
from holdfast.run.snapshots.memory_places import memory_places
from holdfast.run.timeline import Entry, add_entry, read_timeline, settings_at
from holdfast.supervision.preparation.needs import refuse_no_held_out

_AT_A_START = (  # a trainer takes them up when it starts; not evaluate.rows, because losses of other rows cannot be compared
    *("train.lr:", "evaluate.every:", "evaluate.patience:", "evaluate.min_delta:", "evaluate.keep_best:"),
)
_FREE = (
    *("evaluate.generate:", "evaluate.max_new_tokens:", *_AT_A_START),
    *("save.every:", "save.min_every:", "save.max_every:", "save.keep:", "save.keep_every:", "save.to:", "save.to_every:"),
)  # keys that change no weight of the steps so far, no row, nor where the state lies

_OF_LENGTH = ("train.steps:", "train.epochs:")


def take_up_changes(run: RunFolder, old: Config, new: Config, audience: Audience) -> Config:
    """Return the config to compare `new` with: the run's, with those changes of `new` that may be made while it is unfinished.

    They are on record and told. The learning rate changes from the next step on, on the timeline; RUN/config.yaml keeps
    the first one, by which the steps so far are replayed. Nothing is taken up where another change will be refused.
    Raises Stop where a trainer is alive that would not hear of a change, and where no row is held out to evaluate on.
    """
    now = old.model_copy(update={"train": old.train.model_copy(update={"lr": _asked_rate(run, old)})})
    changed = differences(now, new)
    others = [change for change in changed if not change.startswith((*_FREE, *_OF_LENGTH))]
    changes = [change for change in changed if change.startswith(_FREE)]
    if not changes or others or (read_json(run.summary_file) or {}).get("status") == "finished":
        return now
    unheard = [change for change in changes if change.startswith(_AT_A_START)]
    if unheard and taken(run.trainer_lock):
        text = f"{run.path}: a trainer is at work, which takes up such a change only when it starts: {'; '.join(unheard)}"
        raise Stop(USAGE, text, f"holdfast stop {shown(run.path)}, then rerun the same command")
    refuse_no_held_out(new, run.plan().rows.held_out)
    if now.train.lr != new.train.lr:
        step = _next_step(run, old)
        factor = settings_at(read_timeline(run.timeline_file), step).lr_factor * new.train.lr / now.train.lr  # a rollback's part stays
        reason = f"train.lr = {new.train.lr:g} from step {step} on, as asked"
        add_entry(run.timeline_file, Entry(step, {"lr_factor": factor}, reason))
        run.event("learning_rate_changed", lr=new.train.lr, before=now.train.lr, from_step=step)
    places = {key: getattr(old.save, key) for key in ("snapshot_dir", "flush_snapshots")}
    kept = {"evaluate": new.evaluate, "save": new.save.model_copy(update=places)}
    run.write_config(old.model_copy(update=kept))
    run.event("config_changed", changes=changes)
    audience.tell(f"from here on: {'; '.join(changes)}")
    return now.model_copy(update=kept | {"train": now.train.model_copy(update={"lr": new.train.lr})})


def _asked_rate(run: RunFolder, old: Config) -> float:
    """Return the learning rate that was asked for last."""
    rates = [event["lr"] for event in run.events() if event["event"] == "learning_rate_changed"]
    return float(rates[-1]) if rates else old.train.lr


def _next_step(run: RunFolder, config: Config) -> int:
    """Return the first step that is still to be computed: a snapshot may be ahead of the journal."""
    places = memory_places(run.path, run.id(), config.save.snapshot_dir, config.save.flush_snapshots)
    headers = [memory.newest_header() for place in places if (memory := MemoryFile.open(place))]
    return max(run.committed(), *(header.step for header in headers if header), 0) + 1
