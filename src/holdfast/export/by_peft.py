"""What an adapter makes of a base whose files have other names than its model has, or other shapes: asked of PEFT and transformers.

They hold the model in fp32 in main memory, where `delta.py` holds a stretch of rows.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from holdfast.base.errors import Stop
from holdfast.export.child import ask
from holdfast.export.delta import Change, Delta, Unplaced
from holdfast.export.subject import Subject
from holdfast.export.tensors import Held, held_tensors, stretches


def delta_by_peft(subject: Subject, tied: str | None, work: Path, unplaced: Unplaced) -> Delta:
    """The tensors of the base's files that differ once PEFT merged the adapter, whole; they stay in `work` until they are written.

    Raises `unplaced` where that does not work either: the adapter is of another model.
    """
    try:
        ask("merge", work, {"model": str(subject.facts.folder), "adapter": str(subject.tuned)}, os.environ)
    except Stop as stop:
        raise unplaced from stop
    base, merged = held_tensors(subject.facts.folder), held_tensors(work / "merged")
    same = {name: name in base and base[name].stored.shape == held.stored.shape for name, held in merged.items()}
    if not all(same.values()) or set(base) - set(merged) - {tied}:
        raise unplaced
    changes = {name: Change(whole=held) for name, held in merged.items() if not _equal(base[name], held)}
    if tied in changes:
        raise unplaced
    return Delta(changes)


def _equal(base: Held, merged: Held) -> bool:
    return all(np.array_equal(base.rows(first, last), merged.rows(first, last)) for first, last in stretches(base.stored.shape))
