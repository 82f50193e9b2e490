"""Which turns of a row are to be learned, as the turn or the row says itself. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.data.judge.bad_row import BadRow, kind_of
from holdfast.data.judge.names import ROW_MASKS, TURN_MARKS

_OFF, _ON = ("false", "no", "0", "0.0"), ("true", "yes", "1", "1.0")


def learns(turn: dict[str, Any], number: int) -> bool:
    """Return whether a turn is to be learned, as it says itself: {"train": false}, {"weight": 0}, {"masked": true}.

    Raises BadRow for a mark that says neither, and for one that teaches a part of the turn.
    """
    for name in sorted(TURN_MARKS & turn.keys()):
        mark = turn[name]
        if mark is None:
            continue
        if name == "train_detail":
            mark = _of_parts(mark, str(turn.get("content", turn.get("value", ""))), number)
        if _says(mark, f"turn {number} has a {name}") == (name == "masked"):
            return False
    return True


def row_mask(value: Mapping[str, Any], roles: Sequence[str]) -> set[int]:
    """Return which answers a row's own mask leaves out: {"loss_mask": [0, 1]}, a number a turn or a number an answer. Raises BadRow."""
    found: set[int] = set()
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
        found |= {at for at, mark in zip(turns, mask, strict=True) if not _says(mark, f"the row has a {name}")}
    return {at for at in found if roles[at] == "assistant"}


def _says(mark: Any, told: str) -> bool:
    """Return whether a mark says yes. Raises BadRow, which begins with `told`, for one that says neither yes nor no."""
    if isinstance(mark, str) and mark.strip().lower() in (*_OFF, *_ON):
        return mark.strip().lower() in _ON
    if isinstance(mark, bool | int | float) and mark in (0, 1):
        return bool(mark)
    between = isinstance(mark, int | float) and 0 < mark < 1
    way = "; a turn counts whole or not at all, a whole row by the field that data.row_weight names" if between else ""
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
