"""The checkpoint writer: turns pinned snapshots into durable checkpoints, next to training. Needs no torch; decides nothing.

    python -m holdfast.processes.writer RUN ATTEMPT

One at a time per run (a lock). It ends when the trainer is gone and nothing is pinned any more.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import shutil
import signal
import socket
import sys
import time
import warnings
from pathlib import Path

from holdfast.base.errors import Stop
from holdfast.base.files import Json, read_json
from holdfast.base.identity import alive
from holdfast.base.locks import Tell, hold
from holdfast.base.wait import wait_for_end
from holdfast.config.config import Save
from holdfast.config.faults import Fault, Moment, fires
from holdfast.config.load import load_faults
from holdfast.run.artifact import Artifact, artifact_of
from holdfast.run.attempt import read_launch_spec
from holdfast.run.folder import RunFolder
from holdfast.run.own_run import OwnRun
from holdfast.run.snapshots.bell import hang_up, silence
from holdfast.run.snapshots.checkpoint import (
    STATE,
    checkpoint_name,
    clear_staging,
    problem,
    prune,
    publish_checkpoint,
    save_checkpoint,
    stage_checkpoint,
)
from holdfast.run.snapshots.memory_file import SLOTS, MemoryFile, Snapshot
from holdfast.run.snapshots.piece_files import everybodys, has_others, unpin
from holdfast.run.snapshots.pieces import ShardedState

_LOOK_S, _BELL_S = 0.02, 0.5  # between two looks: without and with a bell


def main(run: RunFolder, attempt: int) -> int:
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    orders = read_launch_spec(run.attempt(attempt))
    faults = load_faults(orders.faults) if orders and orders.faults else []
    keep, own = run.config().save, OwnRun(run)
    with hold(run.writer_lock, wait=True):
        clear_staging(run)
        ready: Json | None = None
        trainer: Json | None = None
        held: tuple[int, MemoryFile] | None = None
        bell: socket.socket | None = None
        looks_gone = True
        while True:
            trainer = trainer or read_json(run.attempt(attempt) / "rank0.json")
            if ready is None and (ready := read_json(run.attempt(attempt) / "ready.json")):
                bell = hang_up(Path(ready["memory_file"]))
            if bell is not None:
                silence(bell)
            living = not looks_gone or (alive(trainer["identity"]) if trainer else _locked(run))
            held = _mapped(Path(ready["memory_file"]), held) if ready and not own.replaced() else None
            saved = _save_pinned(run, held[1], artifact_of(ready), keep, faults, attempt, living) if ready and held else 0
            if not saved and not living:
                return 0
            ended = wait_for_end([trainer["identity"]["pid"]] if trainer else [], _LOOK_S if bell is None else _BELL_S, bell)
            looks_gone = ended or trainer is None or saved > 0


def _mapped(place: Path, held: tuple[int, MemoryFile] | None) -> tuple[int, MemoryFile] | None:
    """Map the snapshots' file and return it with its inode: mapped once, until another file has its name."""
    try:
        inode = place.stat().st_ino
    except OSError:
        return None
    if held is not None and held[0] == inode:
        return held
    memory = MemoryFile.open(place)
    return (inode, memory) if memory else None


def _save_pinned(
    run: RunFolder, memory: MemoryFile, artifact: Artifact, keep: Save, faults: list[Fault], attempt: int, living: bool
) -> int:
    """Save every pinned snapshot; return how many there were. One that other ranks have not sealed their parts of waits while they live."""
    saved = 0
    for header in memory.pinned_headers():
        with everybodys(memory, header) as state:
            if state is None and living and has_others(memory, header):
                continue
            if state is not None:
                memory.saved_s = _save(run, state, artifact, keep, faults, attempt)
        unpin(memory, header)
        saved += 1
    return saved


def persist_newest(run: RunFolder, places: list[Path], artifact: Artifact, keep: Save, tell: Tell | None = None) -> int | None:
    """Make the newest snapshot durable after its trainer is gone, and those a dead writer left pinned.

    The step of the newest, or None when no snapshot is left. Raises OSError, and Stop(1) where the lock is not given back.
    """
    told = None if tell is None else lambda waiting: tell(f"the newest state is still being written: {waiting}")
    with hold(run.writer_lock, wait=True, tell=told):
        clear_staging(run)
        for place in places:
            memory = MemoryFile.open(place)
            if memory is None:
                continue
            waiting, newest = memory.pinned_headers(), None
            headers = sorted((one for index in range(SLOTS) if (one := memory.header(index))), key=lambda one: -one.generation)
            for header in headers:
                if newest is not None and header not in waiting:
                    continue
                with everybodys(memory, header) as state:
                    newest = newest or (header if state else None)
                    if state and problem(run.checkpoints / checkpoint_name(state.step), run.id()):
                        save_checkpoint(run, state, artifact, keep)
            for header in waiting:
                unpin(memory, header)
            if newest is not None:
                return newest.step
    return None


def _locked(run: RunFolder) -> bool:
    """Return whether a trainer is there that has not written its name yet, or its shim."""
    with hold(run.trainer_lock, wait=False) as free:
        return not free


def _save(run: RunFolder, snapshot: Snapshot | ShardedState, artifact: Artifact, keep: Save, faults: list[Fault], attempt: int) -> float:
    """Save one checkpoint; return the seconds it took. A save that fails is an event and not the end: training goes on."""
    began = time.perf_counter()
    step = snapshot.step
    try:
        staged = stage_checkpoint(run, snapshot, artifact)
        _break(faults, Moment("save", attempt, step=step), staged, artifact)
        publish_checkpoint(run, staged, step)
        _break(faults, Moment("saved", attempt, step=step), None, artifact)
        prune(run, keep)
        _tell(run, "checkpoint_saved", step=step, seconds=round(time.perf_counter() - began, 4))
    except OSError as error:
        clear_staging(run)
        _tell(run, "checkpoint_failed", step=step, reason=f"{error.strerror or error}", free_bytes=shutil.disk_usage(run.path).free)
    return time.perf_counter() - began


def _break(faults: list[Fault], moment: Moment, staged: Path | None, artifact: Artifact) -> None:
    for fault in faults:
        if not fires(fault, moment):
            continue
        print(fault.message or f"fault: {fault.name}", flush=True)
        if fault.effect == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.effect == "disk_full":
            raise OSError(errno.ENOSPC, fault.message or "No space left on device")
        elif fault.effect == "raise" or (fault.effect == "bad_sector" and fnmatch.fnmatchcase(f"checkpoints/{_final(staged)}", fault.path)):
            raise OSError(errno.EIO, fault.message or "Input/output error")
        elif staged is not None and fault.effect == "corrupt_checkpoint":
            _flip_a_bit(staged / artifact.weights_name)
        elif staged is not None and fault.effect == "torn_checkpoint":
            os.truncate(staged / STATE, (staged / STATE).stat().st_size // 2)
            (staged / artifact.config_name).unlink()


def _final(staged: Path | None) -> str:
    """Return the name that a checkpoint being written will have."""
    return staged.name.split(".")[1] if staged else ""


def _flip_a_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def _tell(run: RunFolder, kind: str, **facts: object) -> None:
    try:
        run.event(kind, **facts)
    except OSError as error:
        with contextlib.suppress(OSError):
            print(f"holdfast writer: {kind} {facts}; not journalled: {error.strerror}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore", ResourceWarning)  # what is held to the end is held on purpose, whatever PYTHONWARNINGS says
    try:
        raise SystemExit(main(RunFolder(Path(sys.argv[1])), int(sys.argv[2])))
    except Stop as stop:
        print(f"holdfast writer: {stop}", file=sys.stderr, flush=True)
        raise SystemExit(stop.code) from None
