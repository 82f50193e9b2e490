"""The checkpoint to go on from: the newest that is whole. Those that are not are renamed aside, never deleted."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.files import read_python_json
from holdfast.book.kinds.launcher import LauncherCard
from holdfast.run.command import Command
from holdfast.supervision.foreign_checkpoints.proof import of_accelerate, prove
from holdfast.supervision.foreign_checkpoints.tensors import NotWhole

MOST_STEPS = 10**12  # a number beyond it is none of steps
ASIDE = "set-aside-"  # a Trainer counts and deletes what begins with "checkpoint-"
_TRAINER = re.compile(r"checkpoint-(\d{1,12})")
_ACCELERATE = re.compile(r"(?:checkpoint|step|epoch)[-_](\d{1,12})")  # as its examples, transformers' and diffusers' scripts name them
_STEP = re.compile(r"(?:step|iter(?:ation)?)s?[-_=]?(\d+)", re.I)
_NO_STEP = re.compile(r"(?:epochs?|ep)[-_=]?(\d+)", re.I)
_ANY = re.compile(r"(\d+)(?=\D*$)")


@dataclass(frozen=True)
class NewestCheckpoint:
    """step: of the checkpoint, None where its name tells none; aside: (new path, why) of those that were not whole."""

    path: Path | None
    step: int | None
    aside: tuple[tuple[Path, str], ...] = ()


def form_of(command: Command, card: LauncherCard | None) -> str:
    """Return how a command's checkpoints look: the form of its launcher's card, a Trainer's, or any files."""
    return card.whole if card is not None and card.checkpoints else "trainer" if command.callback else "files"


def candidates(place: Path, whole: str) -> list[tuple[int | None, Path]]:
    """Return (step, path) of what is named like a checkpoint, newest first. step: None where the name tells none, as that of an epoch."""
    found: list[tuple[int | None, int | None, Path]] = []
    with contextlib.suppress(OSError):
        for entry in place.iterdir():
            if entry.name.startswith((ASIDE, ".")) or _is_another_name(entry):
                continue
            if whole == "trainer":
                named = _TRAINER.fullmatch(entry.name) or (_ACCELERATE.fullmatch(entry.name) and of_accelerate(entry))
                if named and (entry.is_dir() or entry.is_symlink()):
                    found.append((*_numbers(entry.name), entry))
            elif entry.is_dir() or entry.is_symlink() or entry.suffix in (".pt", ".pth", ".ckpt", ".safetensors", ".bin"):
                found.append((*_numbers(entry.name), entry))
    found.sort(key=lambda one: (-1 if one[0] is None else one[0], changed(one[2])), reverse=True)
    return [(step, entry) for _, step, entry in found]


def _numbers(name: str) -> tuple[int | None, int | None]:
    """Return (number that orders checkpoints of this name, step it tells of): an epoch's tells of no step. None: there is none."""
    epoch = None if (step := _STEP.search(name)) else _NO_STEP.search(name)
    found = step or epoch or _ANY.search(name)
    number = int(found[1]) if found else MOST_STEPS
    return (None, None) if number >= MOST_STEPS else (number, None if epoch else number)


def _is_another_name(entry: Path) -> bool:
    """True if this is a link to what lies beside it (latest -> checkpoint-6). One to elsewhere (a scratch disk) is a checkpoint itself."""
    try:
        return entry.is_symlink() and entry.resolve().parent == entry.parent.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return True


def marks(place: Path, whole: str) -> dict[str, int]:
    """Return the checkpoints there are, by name, with their time of change: to know later which of them are another run's."""
    return {entry.name: changed(entry) for _, entry in candidates(place, whole)}


def changed(entry: Path) -> int:
    """Return the time of change in nanoseconds; of a Trainer's folder, when its state was written: anybody may touch a folder."""
    for file in (entry / "trainer_state.json", entry):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime_ns
    return 0


def newest_whole(place: Path, whole: str, there: dict[str, int]) -> NewestCheckpoint:
    """Return the newest whole checkpoint that is not one of `there`. What is newer and not whole is renamed."""
    own = [(step, entry) for step, entry in candidates(place, whole) if there.get(entry.name) != changed(entry)]
    aside: list[tuple[Path, str]] = []
    for at, (step, entry) in enumerate(own):
        try:
            prove(entry, whole, own[at + 1][1] if at + 1 < len(own) else None)
        except NotWhole as error:
            aside.append((_set_aside(entry), str(error)))
            continue
        return NewestCheckpoint(entry, step, tuple(aside))
    return NewestCheckpoint(None, None, tuple(aside))


def one_too_many(entry: Path) -> bool:
    """True if a Trainer that resumes from this checkpoint computes a step more than it was asked for.

    It asks whether its last step is done after a step, and it has epochs left where that step was not an epoch's last one
    (`_run_epoch` and `_inner_training_loop` of transformers' Trainer).
    """
    state = read_python_json(entry / "trainer_state.json") or {}
    step, most, epoch = (state.get(name) for name in ("global_step", "max_steps", "epoch"))
    at_its_end = isinstance(step, int) and isinstance(most, int) and 0 < most <= step
    return at_its_end and isinstance(epoch, int | float) and epoch % 1 != 0


def rows_twice(entry: Path) -> str:
    """Say that a Trainer which goes on from this checkpoint sees rows twice; empty where it does not, or that is not known.

    Of a data set without a length it takes all its steps for one pass (`_init_training_state` of transformers' Trainer): it passes over
    as many batches as it had, which is more than a later pass begins behind, and begins that pass anew.
    """
    state = read_python_json(entry / "trainer_state.json") or {}
    told = [state.get(name) for name in ("global_step", "max_steps", "epoch", "num_train_epochs")]
    step, most, epoch, epochs = (one if isinstance(one, int | float) else 0 for one in told)
    if epochs < MOST_STEPS or not (0 < step < most and epoch > 1):
        return ""
    return (
        f"{entry.name} lies in pass {int(epoch) + 1} over a data set without a length, which a Trainer begins anew: rows of it come twice"
    )


def doubt(place: Path, whole: str, there: dict[str, int]) -> str:
    """Return why the newest checkpoint not one of `there` is not whole; empty where it is, or there is none. Renames nothing."""
    own = [entry for _, entry in candidates(place, whole) if there.get(entry.name) != changed(entry)]
    try:
        if own:
            prove(own[0], whole, own[1] if len(own) > 1 else None)
    except NotWhole as error:
        return f"{own[0].name}: {error}"
    return ""


def is_whole(entry: Path, whole: str) -> bool:
    """Return whether a checkpoint is whole, as far as it alone tells."""
    try:
        prove(entry, whole, None)
    except NotWhole:
        return False
    return True


def _set_aside(entry: Path) -> Path:
    """Rename an entry beside itself and return its path; where that fails (a read-only disk) it keeps its own name."""
    for number in range(1, 1000):
        other = entry.with_name(f"{ASIDE}{entry.name}" + (f".{number}" if number > 1 else ""))
        if not other.exists():
            with contextlib.suppress(OSError):
                return entry.rename(other)
            return entry
    return entry


def states_since(place: Path, since: float) -> list[tuple[int, int | None]]:
    """Return (step, last step) of the checkpoints in a folder whose trainer_state.json was written since then, newest first."""
    found = []
    for step, entry in candidates(place, "trainer"):
        file = entry / "trainer_state.json"
        with contextlib.suppress(OSError):
            facts = file.stat()
            if step is None or facts.st_mtime < since:
                continue
            if state := _last_step(file, facts.st_mtime_ns, facts.st_size):
                found.append((step, state[0]))
    return found


def total_of(entry: Path, step: int) -> int | None:
    """Return the steps of the training that a Trainer's checkpoint of this step is in the midst of; None where that is not known."""
    most = (read_python_json(entry / "trainer_state.json") or {}).get("max_steps")
    return most if isinstance(most, int) and step < most < MOST_STEPS else None


def named_since(place: Path, since: float) -> list[tuple[int, int | None]]:
    """Return (step, None) of the files and folders in a folder that are named by a step and were written since then, newest first."""
    named = [(step, entry) for step, entry in candidates(place, "files") if _STEP.search(entry.name) or _TRAINER.match(entry.name)]
    return [(step, None) for step, entry in named if step is not None and changed(entry) >= since * 1e9]


def earliest(place: Path, steps: Sequence[int]) -> int:
    """Return which of these steps' checkpoints was written first: the numbers of a second stage are lower than those of the first."""
    written = [(changed(entry), step) for step, entry in candidates(place, "files") if step in steps]
    return next((step for _, step in sorted(written, key=lambda one: one[0]) if step is not None), steps[-1])


@functools.lru_cache(maxsize=64)
def _last_step(file: Path, changed_ns: int, size: int) -> tuple[int | None] | None:
    """Read (last step,) from a trainer_state.json, None where it tells nothing. It holds the whole course of losses: read once."""
    state = read_python_json(file)
    if state is None:
        return None
    most = state.get("max_steps")
    return (most if isinstance(most, int) and 0 < most < MOST_STEPS else None,)
