"""What is done after somebody else's command has ended, from what is known of its attempts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

SAME = 2  # attempts in a row without progress that end alike
FROM_OUTSIDE = 8  # of what is somebody else's doing, often
BARREN = 20  # attempts in a row without progress, whatever the cause
_PAUSES_S = (0.5, 10.0)


@dataclass(frozen=True)
class Try:
    """One ended attempt: cause and words of its end, whether it came further than any before, whether somebody else ended it.

    remedy: what was changed for it, none: "".
    """

    cause: str
    words: str
    progressed: bool
    from_outside: bool = False
    remedy: str = ""


@dataclass(frozen=True)
class NextTry:
    """done: the command ended well; again: it is started once more after `pause_s`; else it is given up, for `reason`."""

    kind: Literal["done", "again", "give_up", "stopped"]
    reason: str
    pause_s: float = 0.0
    try_remedy: bool = False


def next_try(
    tries: Sequence[Try],
    code: int | None,
    *,
    stop: bool,
    retries: int | None,
    disk_full: str = "",
    cut_short: str = "",
    final: str = "",
    may_try: bool = False,
) -> NextTry:
    """What follows after the last of `tries`, which ended with `code`, None: not by itself.

    stop: its user wants to stop; disk_full: the disk that takes nothing, by name; cut_short: why an end with 0 was none;
    final: why another attempt would meet the same, as found; may_try: a remedy is left to try.
    """
    last = tries[-1]
    if stop:
        return NextTry("stopped", "stopped on request")
    if code == 0 and not cut_short:
        return NextTry("done", "ended with exit code 0")
    if final:
        return NextTry("give_up", final)
    if disk_full:
        return NextTry("give_up", f"{last.words}; {disk_full} is full: make room, then rerun the same command to resume")
    if retries is not None and len(tries) > retries:
        return NextTry("give_up", f"{last.words}; {len(tries)} attempts, and --retries {retries} allows no more")
    alike = _trailing(tries, lambda one: not one.progressed and _key(one) == _key(last))
    barren = _trailing(tries, lambda one: not one.progressed)
    told = f"{cut_short or last.words}" + (f" ({last.cause})" if last.cause != "unknown" else "")
    if not last.progressed and may_try and not last.from_outside and alike >= SAME:
        return NextTry("again", f"{told} again without progress; trying what is known to help", _pause(barren), try_remedy=True)
    if alike >= (FROM_OUTSIDE if last.from_outside else SAME):
        return NextTry("give_up", f"{told}: {alike} attempts in a row ended so without progress")
    if barren >= BARREN:
        return NextTry("give_up", f"{told}; {barren} attempts in a row made no progress, for changing reasons")
    return NextTry("again", told, _pause(barren))


def _key(one: Try) -> tuple[object, ...]:
    return one.cause, one.words, one.from_outside, one.remedy


def _pause(barren: int) -> float:
    return min(_PAUSES_S[1], _PAUSES_S[0] * 2 ** (barren - 1)) if barren else 0.0


def _trailing(tries: Sequence[Try], holds: Callable[[Try], bool]) -> int:
    return next((at for at, one in enumerate(reversed(tries)) if not holds(one)), len(tries))
