"""Somebody else's command at a second place (`holdfast run --to`): its checkpoint, and what its callback keeps in memory, sent and fetched.

What is sent is laid out as a run folder: its journals, `checkpoints/NAME` (the newest whole one of the command's), `memory/facts` and
`memory/tensors` (the state that outlives the process here), and the attempt's `pattern` that a checkpoint is made of with it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.base.disk import flush_tree
from holdfast.base.errors import BLOCKED, Stop
from holdfast.base.locks import Tell
from holdfast.book import cards_of
from holdfast.callback.shared import SharedState, copied, step_of
from holdfast.run.command import Command, read_command, write_command
from holdfast.run.folder import RunFolder
from holdfast.supervision.foreign_checkpoints.archives import prove_pickle
from holdfast.supervision.foreign_checkpoints.kept import snapshot_of
from holdfast.supervision.foreign_checkpoints.newest import candidates, changed, form_of
from holdfast.supervision.foreign_checkpoints.proof import prove
from holdfast.supervision.foreign_checkpoints.tensors import NotWhole
from holdfast.supervision.remote.elsewhere import fetch_newer
from holdfast.supervision.remote.state import Sender, Sent, fetch
from holdfast.supervision.remote.targets import Target

MEMORY = "memory"


@dataclass
class CommandSender(Sender):
    """Brings a command's states to a place. every: fewest steps between two of its callback's; each new checkpoint is sent."""

    every: int = 1
    sent: tuple[int, object] = (0, None)
    seen: dict[tuple[str, int], int] = field(default_factory=dict)

    def newest(self, last: bool) -> tuple[int, object] | None:
        step, mark, _ = self._saved()
        in_memory = self._in_memory()
        if mark == self.sent[1] and in_memory < self.sent[0] + (1 if last else self.every):
            return self.sent if self.sent[0] else None
        return max(step, in_memory, self.sent[0]), mark

    def marked(self, sent: Sent, newest: tuple[int, object]) -> tuple[int, object]:
        return self.sent

    def _files(self) -> tuple[int, list[tuple[str, Path | bytes]]] | None:
        state, (saved, mark, checkpoint) = self._copy(), self._saved()
        step = max(saved, state[0] if state else 0)
        if not step:
            return None
        files: list[tuple[str, Path | bytes]] = []
        if checkpoint is not None:
            files += [(f"checkpoints/{file.relative_to(checkpoint.parent).as_posix()}", file) for file in _files_of(checkpoint)]
        if state is not None and state[0] > saved:
            files += [(f"{MEMORY}/facts", state[2]), (f"{MEMORY}/tensors", state[1])]
            files += self._under(self.run.attempt(self.run.attempts()[-1]) / "pattern")
        self.sent = (step, mark)
        return step, [*files, *self._journals()]

    def _in_memory(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return step_of(snapshot_of(self.run))
        return 0

    def _copy(self) -> tuple[int, bytes, bytes] | None:
        with contextlib.suppress(OSError, ValueError):
            return copied(snapshot_of(self.run))
        return None

    def _saved(self) -> tuple[int, object, Path | None]:
        """Return (step, identity, path) of the command's newest whole checkpoint; (0, None, None): none. Renames nothing."""
        command = read_command(self.run)
        if command is None or command.place is None:
            return 0, None, None
        whole = form_of(command, cards_of("launchers").get(command.launcher or ""))
        found = [(step, entry) for step, entry in candidates(command.place, whole) if command.there.get(entry.name) != changed(entry)]
        for at, (step, entry) in enumerate(found):
            mark = (entry.name, changed(entry))
            if _is_whole(entry, mark[1], whole, found[at + 1][1] if at + 1 < len(found) else None):
                return step or self.seen.setdefault(mark, max(1, _reached(self.run))), mark, entry
        return 0, None, None


@functools.lru_cache(maxsize=8)
def _is_whole(entry: Path, _: int, whole: str, elder: Path | None) -> bool:
    try:
        prove(entry, whole, elder)
    except NotWhole:
        _is_whole.cache_clear()  # it may be being written
        return False
    return True


def _files_of(entry: Path) -> list[Path]:
    return [path for path in sorted(entry.rglob("*")) if path.is_file() and not path.is_symlink()] if entry.is_dir() else [entry]


def fetched_for(path: Path, command: Command, tell: Tell) -> None:
    """Make `path` the run of this command at `command.to`, where that state is newer, with its checkpoint in place.

    Raises Stop where another machine trains it meanwhile, or another command's run is there.
    """

    def take(target: Target) -> int:
        step, passed_over = fetch(target, path)
        for one in passed_over:
            tell(f"passed over the state of step {one['state']}: {one['reason']}")
        if why := _put_in_place(RunFolder(path), step, command, target):
            tell(f"{why}; the newest checkpoint is used")
        RunFolder(path).event("fetched", step=step, address=target.address, passed_over=passed_over, machine=[])
        return step

    if command.to is not None:
        fetch_newer(path, command.to, tell, _reached, take)


def _reached(run: RunFolder) -> int:
    return max((int(row.get("step") or 0) for row in run.progress()), default=0)


def _put_in_place(run: RunFolder, step: int, command: Command, target: Target) -> str:
    """Bring what was fetched to where the command looks for it; why the state in memory is not used, empty where it is, or there is none.

    Raises Stop(1) where it is another command's, and removes it.
    """
    begun = read_command(run)
    if begun is None or begun.argv != command.argv:
        shutil.rmtree(run.path)
        what = f"another command: {' '.join(begun.argv)[:200]}" if begun else "holdfast train"
        raise Stop(BLOCKED, f"{target.address} holds the run of {what}", "give each run a place of its own: another --to")
    if begun.checkpoints and not command.checkpoints:  # its callback told it, with the folder of that machine
        command = replace(command, checkpoints=str(_rebased(Path(begun.checkpoints), begun.folder, command.folder)))
    write_command(run, replace(command, there=begun.there, unknown_option=begun.unknown_option))
    if (place := command.place) is not None and run.checkpoints.is_dir():
        for entry in run.checkpoints.iterdir():
            _copy_whole(entry, place / entry.name)
    why = _put_into_memory(run, step) if (run.path / MEMORY).is_dir() else ""
    for folder in (run.checkpoints, run.path / MEMORY):
        shutil.rmtree(folder, ignore_errors=True)
    return why


def _put_into_memory(run: RunFolder, step: int) -> str:
    facts = (run.path / MEMORY / "facts").read_bytes()
    try:
        prove_pickle("its state in memory", facts)
        tensors = run.path / MEMORY / "tensors"
        shared = SharedState(snapshot_of(run), str(run.path), tensors.stat().st_size, len(facts))
        at, begin = shared.slot()
        with tensors.open("rb") as handle:
            handle.readinto(memoryview(shared.memory)[begin : begin + shared.room])
        shared.seal(at, facts, step)
    except NotWhole as error:
        return str(error)
    except OSError as error:
        return f"there is no room for its state in memory ({error.strerror})"
    return ""


def _rebased(place: Path, old: str, new: str) -> Path:
    return Path(new) / place.relative_to(old) if place.is_relative_to(old) else place


def _copy_whole(entry: Path, place: Path) -> None:
    """Copy a checkpoint under another name, then give it its own; one that is there is left alone."""
    if place.exists():
        return
    staged = place.with_name(f".holdfast-{place.name}.{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(entry, staged) if entry.is_dir() else shutil.copyfile(entry, staged)
    flush_tree(staged)
    staged.rename(place)
