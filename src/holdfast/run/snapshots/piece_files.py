"""Snapshots of which each rank has its part, in a memory file of its own: a state is there when all parts are. Bytes only.

The first rank's file says which states there may be; a part of another rank is of the same state where step and attempt are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from holdfast.base.files import Json
from holdfast.run.snapshots.memory_file import SLOTS, MemoryFile, SlotHeader, Snapshot
from holdfast.run.snapshots.memory_places import of_rank
from holdfast.run.snapshots.pieces import JoinedImage, ShardedState, join


def facts_of(ranks: int, attempt: int) -> Json:
    """Return what the meta of a part has beside that of a whole state."""
    return {"ranks": ranks, "attempt": attempt}


def ranks_in(meta: Json) -> int:
    """Return how many parts a state has."""
    return int(meta.get("ranks", 1))


def newest_of(memory: MemoryFile, header: SlotHeader, ranks: int, each_its_own: bool = False) -> Snapshot | None:
    """Return the state of a slot as one of `ranks` ranks reads it, the first: its own part where there are as many, else all of it.

    None where a part is missing or damaged. each_its_own: the others look at theirs themselves.
    """
    if each_its_own and ranks > 1 and ranks_in(memory.meta(header)) == ranks:
        return memory.read(header)
    with everybodys(memory, header) as state:
        if state is None:
            return None
        if ranks > 1 and ranks_in(state.meta) == ranks:
            return memory.read(header)
        return Snapshot(state.step, header.generation, state.meta, bytes(state.artifact), bytes(state.state))


@contextmanager
def everybodys(memory: MemoryFile, header: SlotHeader) -> Iterator[ShardedState | None]:
    """Yield the state of a slot of the first rank's file with all other ranks' parts; None where one is missing or damaged.

    It lies in their files, unchanged as long as it is pinned or newest, and is there until the end of the block.
    """
    with ExitStack() as opened:
        first = memory.view(header)
        if first is None:
            yield None
            return
        meta, *images = first
        opened.callback(_release, images)
        if ranks_in(meta) == 1:
            yield ShardedState(header.step, meta, JoinedImage((images[0],)), JoinedImage((images[1],)))
            return
        artifacts, states = [images[0]], [images[1]]
        for other in others(memory, meta, opened):
            found = part_of(other, header.step, meta["attempt"])
            if found is None:
                yield None
                return
            _, artifact, state = found
            opened.callback(_release, [artifact, state])
            artifacts.append(artifact)
            states.append(state)
        try:
            whole = ShardedState(header.step, meta, join(artifacts), join(states))
        except (ValueError, KeyError):  # of ranks that were not of one run
            yield None
            return
        for joined in (whole.artifact, whole.state):
            opened.callback(_release, joined.stretches)
        yield whole


def has_others(memory: MemoryFile, header: SlotHeader) -> bool:
    """True if a whole slot holds one part, and other ranks hold the rest."""
    if (seen := memory.view(header)) is None:
        return False
    meta, *images = seen
    _release(images)
    return ranks_in(meta) > 1


def others(memory: MemoryFile, meta: Json, opened: ExitStack) -> Iterator[MemoryFile]:
    """Yield the files of the other ranks, as far as they are there."""
    for rank in range(1, ranks_in(meta)):
        if other := MemoryFile.open(of_rank(memory.path, rank)):
            yield opened.enter_context(other)


def part_of(memory: MemoryFile, step: int, attempt: int) -> tuple[Json, memoryview, memoryview] | None:
    """Return a rank's part of the state after `step` that an attempt left."""
    for index in range(SLOTS):
        if (header := memory.header(index)) and header.step == step and (seen := memory.view(header)):
            if seen[0].get("attempt") == attempt:
                return seen
            _release(seen[1:])
    return None


def unpin(memory: MemoryFile, header: SlotHeader) -> None:
    """Let all ranks have the slots of a state again that was to be made durable."""
    with ExitStack() as opened:
        for other in others(memory, memory.meta(header), opened):
            for pinned in other.pinned_headers():
                if pinned.step == header.step:
                    other.unpin(pinned.index)
    memory.unpin(header.index)


def _release(views: Iterable[object]) -> None:
    for view in views:
        if isinstance(view, memoryview):
            view.release()
