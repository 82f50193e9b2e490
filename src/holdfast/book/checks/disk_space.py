"""The run's checkpoints fit onto the disk."""

from collections.abc import Iterator

from holdfast.book.kinds.check import Case, Check, block, warn
from holdfast.run.types import Finding

_CHECKPOINT_BYTES_PER_PARAMETER = 12  # fp32 weight and two Adam moments
_FIX = "make room, or choose another --run DIR"
_JOURNAL_BYTES, _WARN_BYTES = 1 << 20, 512 << 20


def look(case: Case) -> Iterator[Finding]:
    """Block when the checkpoints that are kept, one being written and the journals cannot fit."""
    free = case.machine.disk_free_bytes
    if free is None:
        return
    checkpoint = case.plan.params.trainable * _CHECKPOINT_BYTES_PER_PARAMETER if case.plan else 0
    kept = case.config.save.keep + (1 if case.config.evaluate.every else 0) if case.config else 1  # the best one beside the newest
    needed = (kept + 2) * checkpoint + _JOURNAL_BYTES
    if free >= max(_WARN_BYTES, needed):
        return
    room = f"the disk of the run folder has {free / 2**20:.1f} MiB free, "
    needs = f"the run needs about {needed / 2**20:.1f} MiB"
    yield block(room + needs, _FIX) if free < needed else warn(f"{room}enough if nothing else fills it: {needs}", _FIX)


CARD = Check(
    title="The disk is nearly full",
    why="A run keeps several checkpoints and writes the next before it removes the oldest. A disk that fills up on the way ends the run.",
    source=["https://github.com/huggingface/transformers/issues/35525"],
    hits=[{"disk_free_bytes": 1 << 19}, {"disk_free_bytes": 100 << 20}],
    misses=[{"disk_free_bytes": 9 << 30}, {}],
    look=look,
)
