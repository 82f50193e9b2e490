"""Which turns of a row are to be learned, as the turn or the row says itself. Knows no tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.data.judge.bad_row import BadRow, kind_of
from holdfast.data.judge.names import ROW_MASKS, TURN_MARKS
from holdfast.data.judge.row_weight import LEAST

OFF = 0.0  # of an answer that its row marks as not to be learned
_OFF, _ON = ("false", "no", "0", "0.0"), ("true", "yes", "1", "1.0")


def learns(turn: dict[str, Any], number: int) -> bool | float:
    """Return whether a turn is to be learned, as it says itself: OFF for {"train": false}, {"weight": 0}, {"masked": true}, or how much it
    counts where that is less than whole: {"weight": 0.5}. Of several marks the least.

    Raises BadRow for a mark that says neither, and for one that teaches a part of the turn.
    """
    found: bool | float = True
    for name in sorted(TURN_MARKS & turn.keys()):
        mark = turn[name]
        if mark is None:
            continue
        if name == "train_detail":
            mark = _of_parts(mark, str(turn.get("content", turn.get("value", ""))), number)
        told = f"turn {number} has a {name}"
        found = min(found, not _says(mark, told) if name == "masked" else _counts(mark, told))
    return found or OFF


def row_mask(value: Mapping[str, Any], roles: Sequence[str]) -> dict[int, bool | float]:
    """Return how much answers count of which a row's own mask says less than whole: {"loss_mask": [0, 1]}, a number a turn or a number an
    answer. Raises BadRow."""
    found: dict[int, bool | float] = {}
    for name in ROW_MASKS & value.keys():
        mask = value[name]
        if mask is None:
            continue
        answers = [at for at, role in enumerate(roles) if role == "assistant"]
        if not isinstance(mask, list) or len(mask) not in (len(roles), len(answers)):
            many = f"{len(mask):,} entries" if isinstance(mask, list) else kind_of(mask)
            told = f"the row has a {name} of {many}; one an answer ({len(answers):,}) or one a turn ({len(roles):,}) is read"
            raise BadRow("bad_weight", told)
        turns = range(len(roles)) if len(mask) == len(roles) else answers
        for at, mark in zip(turns, mask, strict=True):
            found[at] = min(found.get(at, True), _counts(mark, f"the row has a {name}"))
    return {at: count or OFF for at, count in found.items() if roles[at] == "assistant" and count is not True}


def _counts(mark: Any, told: str) -> bool | float:
    """Return how much a mark lets an answer count: yes, no, or a share between 0 and 1. Raises BadRow, which begins with `told`."""
    with contextlib.suppress(ValueError):
        if isinstance(mark, float | str) and LEAST <= (share := float(mark)) < 1:
            return share
    return _says(mark, told)


def _says(mark: Any, told: str) -> bool:
    """Return whether a mark says yes. Raises BadRow, which begins with `told`, for one that says neither yes nor no."""
    if isinstance(mark, str) and mark.strip().lower() in (*_OFF, *_ON):
        return mark.strip().lower() in _ON
    if isinstance(mark, bool | int | float) and mark in (0, 1):
        return bool(mark)
    more = isinstance(mark, int | float) and mark > 1
    way = "; a turn counts once at most, a row as often as the field says that data.row_weight names" if more else ""
    it = f"it is {mark!r}" if isinstance(mark, int | float) else f"it is {kind_of(mark)}"
    raise BadRow("bad_weight", f"{told} that says neither yes nor no: 1, true, 0 or false are read, {it[:80]}{way}")


def _of_parts(parts: Any, text: str, number: int) -> bool:
    """Return whether the parts of a turn are learned, all or none (Axolotl's train_detail). Raises BadRow where it is some of them."""
    marks = (
        [_says(part.get("train"), f"turn {number} has a train_detail") for part in parts if isinstance(part, dict)]
        if isinstance(parts, list)
        else []
    )
    if not isinstance(parts, list) or len(marks) < len(parts):
        raise BadRow(
            "bad_weight", f"turn {number} has a train_detail that is no list of parts, each with begin_offset, end_offset and train"
        )
    ends = [(part.get("begin_offset"), part.get("end_offset")) for part in parts]
    covered = sum(end - begin + 1 for begin, end in ends if isinstance(begin, int) and isinstance(end, int))
    if all(marks):
        return True
    if not any(marks) and covered >= len(text):
        return False
    raise BadRow(
        "bad_weight", f"turn {number} has a train_detail that teaches a part of it; a turn is learned whole or not: train: true or false"
    )
