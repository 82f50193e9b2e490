"""Hold a run folder against other supervisors: open or make it, take its lock, say who has it. Prepares nothing."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from holdfast.base.disk import make_folders
from holdfast.base.errors import BLOCKED, USAGE, Stop
from holdfast.base.file_errors import at_place
from holdfast.base.files import Json, read_json
from holdfast.base.identity import myself
from holdfast.base.inert import refuse_unwritable_name
from holdfast.base.safe_open import lock_descriptor
from holdfast.report.words import shown
from holdfast.run.folder import RunFolder
from holdfast.supervision.preparation.refused import LEFT, take_back

HELD_LOCK = "HOLDFAST_HELD_LOCK"  # in the environment of a detached supervisor: the inherited descriptor


@contextlib.contextmanager
def held(path: Path, goes_on: bool = True) -> Iterator[tuple[RunFolder, int]]:
    """Open (or make) a run folder and hold it against other supervisors; the folder, and the descriptor that holds its lock.

    A process that detaches hands that descriptor on, so that the run is held all the while. goes_on: whether this command, given again,
    goes on with the run; where it only ends or sends it, the one before stays noted as that.
    Raises Stop when the folder is held or cannot be written.
    """
    for name in (path, Path.cwd()):
        refuse_unwritable_name(name)
    run = RunFolder(path)
    inherited = os.environ.pop(HELD_LOCK, None)
    try:
        _claim_folder(run)
        descriptor = int(inherited) if inherited else lock_descriptor(run.supervisor_lock)
    except OSError as error:
        raise at_place(error, path, "cannot be written", "choose another place with --run DIR") from None
    try:
        _lock(run, descriptor)
        before: Json = {} if goes_on else read_json(run.supervisor_lock) or {}
        entry: Json = {
            "identity": myself(),
            "host": platform.node(),
            "since": time.strftime("%F %T"),
            "folder": str(Path.cwd()),
            "command": shlex.join(["holdfast", *sys.argv[1:]]),
            **{name: before[name] for name in ("folder", "command", "interrupted") if name in before},
        }
        _note(descriptor, entry)
        try:
            yield run, descriptor
        except KeyboardInterrupt:
            if read_json(run.supervisor_lock) == entry:  # and no process in the background has taken it over
                _note(descriptor, entry | {"interrupted": True})
            raise
        except Stop:
            take_back(run)
            raise
    finally:
        os.close(descriptor)


def _note(descriptor: int, entry: Json) -> None:
    """Note who holds the run, and whether its user ended that; a full disk costs this note alone."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(entry), 0)


def _lock(run: RunFolder, descriptor: int) -> None:
    """Take the lock; for a fifth of a second, because `holdfast status` shares it for an instant when it asks who is there."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(0.02)
        except OSError as error:
            text = f"{run.path} cannot be locked: {error.strerror}"
            raise Stop(BLOCKED, text, "choose a place on a file system that has locks, with --run DIR") from None
    holder = read_json(run.supervisor_lock) or {}
    pid, since = holder.get("identity", {}).get("pid"), holder.get("since", "an unknown time")
    text = f"{run.path} is held by process {pid} on {holder.get('host')} since {since}: {holder.get('command')}"
    name = shown(run.path)
    raise Stop(BLOCKED, text, f"follow it: holdfast attach {name}; stop it (it can be resumed): holdfast stop {name}")


def _claim_folder(run: RunFolder) -> None:
    if run.path.is_file():
        raise Stop(USAGE, f"{run.path} is a file, and a run is a folder", "choose another place with --run DIR")
    if run.path.is_dir() and {entry.name for entry in run.path.iterdir()} - LEFT and not run.begun():
        raise Stop(USAGE, f"{run.path} is not empty and is not a run folder", "give an empty or new folder with --run DIR")
    if run.begun():
        run.refuse_foreign()
    make_folders(run.path, 0o700)  # rows, rejected ones too, and what they taught are nobody else's
