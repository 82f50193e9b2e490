"""Find the state to go on from: memory snapshots and durable checkpoints, newest first, each checked. Loads no tensors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.base.files import Json, append_line, cut_torn_line
from holdfast.run.evaluations import best_of, read_evaluations
from holdfast.run.folder import RunFolder
from holdfast.run.snapshots.checkpoint import checkpoint_name, checkpoint_steps, newest_valid, next_valid, problem
from holdfast.run.snapshots.memory_file import SLOTS, MemoryFile, Snapshot
from holdfast.run.snapshots.piece_files import newest_of


@dataclass(frozen=True)
class RestorePoint:
    """The newest usable state (None: there is none), where it came from, what was passed over."""

    snapshot: Snapshot | None
    place: str
    passed_over: list[Json]
    in_memory: bool = False  # a snapshot, no checkpoint

    def spent(self) -> RestorePoint:
        """Return the same without its tensors, which are as large as the state and have been restored."""
        return replace(self, snapshot=self.snapshot and replace(self.snapshot, artifact=b"", state=b""))


def find_state(run: RunFolder, places: list[Path], limit: int | None = None, ranks: int = 1, each_its_own: bool = False) -> RestorePoint:
    """Find the newest state that verifies, no later than step `limit`. ranks: how many hold a part each; this is the first.

    each_its_own: where as many ranks left their parts in memory, only the first one's is looked at; the others do that themselves.

    The newest checkpoint is verified even when a snapshot is newer, because a checkpoint that went bad should be known before it
    is needed.
    """
    steps = [step for step in checkpoint_steps(run) if limit is None or step <= limit]
    checkpoint, passed_over = newest_valid(run) if limit is None else next_valid(run, steps)
    newest = _newest(places, limit, ranks, each_its_own)
    if newest and (checkpoint is None or newest.step >= checkpoint.step):
        return RestorePoint(newest, f"the snapshot of step {newest.step}", passed_over, in_memory=True)
    if checkpoint:
        return RestorePoint(
            checkpoint.snapshot() if ranks == 1 else checkpoint.mapped(), f"the checkpoint of step {checkpoint.step}", passed_over
        )
    return RestorePoint(None, "the beginning", passed_over)


def _newest(places: list[Path], limit: int | None, ranks: int, each_its_own: bool) -> Snapshot | None:
    """Read the newest whole snapshot of all places. One is read at a time: with full fine-tuning each takes gigabytes."""
    with ExitStack() as opened:
        files = [opened.enter_context(memory) for place in places if (memory := MemoryFile.open(place))]
        held = [(header, memory) for memory in files for index in range(SLOTS) if (header := memory.header(index))]
        for header, memory in sorted(held, key=lambda pair: pair[0].step, reverse=True):
            if (limit is None or header.step <= limit) and (snapshot := newest_of(memory, header, ranks, each_its_own)):
                return snapshot
    return None


def state_for_training(run: RunFolder, places: list[Path], ranks: int = 1, limit: int | None = None) -> RestorePoint:
    """Find the state a run goes on from, and leave its journal with exactly one row for each step up to it. limit: latest step.

    The journal may lack the row of the newest snapshot's step (death in between), or those the full disk did not take: the snapshot
    brings them. Where it lacks more (a journal lost with the power), an older state is used, and its steps computed again. Where there
    is none, the newest is: the steps without a row are told as unknown.
    """
    cut_torn_line(run.steps_file)
    committed = run.committed()
    found = find_state(run, places, limit, ranks, each_its_own=True)
    if found.snapshot and found.snapshot.step > committed and found.snapshot.meta["rows"][0]["step"] > committed + 1:
        older = find_state(run, places, committed + 1, ranks, each_its_own=True)
        if older.snapshot is None:
            missing = {"from": committed + 1, "to": found.snapshot.meta["rows"][0]["step"] - 1}
            run.event("rows_lost", state=found.place, **missing)
        found = older if older.snapshot else found
    for row in found.snapshot.meta["rows"] if found.snapshot else ():
        if row["step"] > committed:
            append_line(run.steps_file, row)
    return _no_later_than_the_best(run, places, found, ranks)


def _no_later_than_the_best(run: RunFolder, places: list[Path], found: RestorePoint, ranks: int) -> RestorePoint:
    """Return `found`, or an older state where the best one by held-out loss was lost with its checkpoint and is to be computed again."""
    best = best_of(row for row in read_evaluations(run) if found.snapshot and row["step"] < found.snapshot.step)
    if best is None or _is_pinned(places, best["step"]):
        return found
    folder = run.checkpoints / checkpoint_name(best["step"])
    reason = problem(folder, run.id())
    if reason is None:
        return found
    older = find_state(run, places, best["step"], ranks, each_its_own=True)
    told: Json = {"checkpoint": folder.name, "reason": f"it held the best state, and {reason}"}
    return replace(older, passed_over=[*found.passed_over, told]) if older.snapshot else found


def _is_pinned(places: list[Path], step: int) -> bool:
    """Return whether a snapshot of `step` waits to be made durable."""
    for place in places:
        memory = MemoryFile.open(place)
        if memory is not None:
            with memory:
                if any(header.step == step for header in memory.pinned_headers()):
                    return True
    return False
