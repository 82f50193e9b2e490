"""End an attempt that hangs: who hangs and who merely waits for it, the stacks of all, then their end. Judges no cause."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.files import Json, write_json
from holdfast.base.identity import Identity, alive
from holdfast.base.safe_open import open_log
from holdfast.base.wait import wait_for_end
from holdfast.processes.attempt import Attempt
from holdfast.processes.ending import STUCK_S, stuck
from holdfast.processes.hang_timeout import Overdue
from holdfast.run.attempt import read_launch_spec
from holdfast.run.holder import signal_holder

STACKS_S = 1.0  # for the stacks to reach the log
_STACK_S = 0.2  # for those of one rank, before the next one is asked


def end_hanging(attempt: Attempt, trainers: Mapping[int, Identity], lock: Path, overdue: Overdue) -> str | None:
    """Have the stacks of silent trainers written into their log, then kill them; why they cannot be ended, where they cannot.

    trainers: by rank; one that does not hold `lock` is sent no signal.
    """
    living = {rank: trainer for rank, trainer in trainers.items() if alive(trainer)}
    if not living:
        return None
    text = f"no sign of life for {overdue.seconds:.0f} s in the section {overdue.section!r} (limit {overdue.limit_s:.0f} s)"
    hang = _hanging(attempt, text) | {"section": overdue.section}
    with contextlib.suppress(OSError):  # a full disk
        write_json(attempt.folder / "hang.json", hang)
    ours = _asked_for_stacks(attempt, living, lock, hang.get("ranks"))
    if not ours and any(map(alive, living.values())):
        (attempt.folder / "hang.json").unlink(missing_ok=True)  # it lives on, and may end of something else
        return f"process {next(iter(living.values()))['pid']}, which rank0.json names, does not hold trainer.lock; it is sent no signal"
    wait_for_end([trainer["pid"] for trainer in ours], STACKS_S)
    for trainer in ours:
        signal_holder(trainer, lock, signal.SIGKILL)
    deadline = time.monotonic() + STUCK_S
    while (left := [trainer["pid"] for trainer in ours if alive(trainer)]) and time.monotonic() < deadline:
        wait_for_end(left, STUCK_S)
    return stuck("the trainer") if left else None


def _asked_for_stacks(attempt: Attempt, living: Mapping[int, Identity], lock: Path, doing: Json | None) -> list[Identity]:
    """Send each trainer in turn the signal by which faulthandler writes its stacks; return those it was sent. doing: of several ranks."""
    ours = []
    for rank, trainer in living.items():
        if doing is not None:
            _title(attempt, f"stacks of rank {rank}, process {trainer['pid']} ({doing.get(str(rank), 'no pulse')})")
        if signal_holder(trainer, lock, signal.SIGUSR1):
            ours.append(trainer)
        if doing is not None:
            wait_for_end([trainer["pid"]], _STACK_S)
    return ours


def _title(attempt: Attempt, text: str) -> None:
    """Write a line to the log of all ranks, above what one of them writes next."""
    with contextlib.suppress(OSError), open_log(attempt.folder / "output.log") as log:
        log.write(f"holdfast: {text}\n".encode())


def _hanging(attempt: Attempt, text: str) -> Json:
    """Return which step hangs, and where there are several ranks, in which of them: the others wait for it."""
    orders = read_launch_spec(attempt.folder)
    size = orders.facts.get("ranks", 1) if orders else 1
    pulses = {rank: pulse for rank in range(size) if (pulse := attempt.pulse(rank))}
    guilty = [rank for rank, pulse in pulses.items() if not pulse.get("waits")]
    pulse = pulses.get(guilty[0] if guilty else 0, {})
    facts = {"reason": text, "step": pulse.get("step"), "samples": pulse.get("samples", [])}
    if size == 1:
        return facts
    awaited = sorted({one["waits"] for one in pulses.values() if isinstance(one.get("waits"), str)})
    wait = f"wait for {' and '.join(awaited)}" if awaited else "wait"
    named = f"; rank {', '.join(map(str, guilty))} of {size} hangs, the others {wait}" if 0 < len(guilty) < size else ""
    if len(pulses) == size and not guilty:
        named = f"; all {size} ranks wait for each other, so it is the connection between them"
    ranks = {str(rank): _doing(one) for rank, one in pulses.items()}
    return facts | {"reason": text + named, "ranks": ranks, "rank": guilty[0] if len(guilty) == 1 else None}


def _doing(pulse: Json) -> str:
    """Say what a rank did last, by its pulse."""
    waits = pulse.get("waits")
    if not waits:
        return str(pulse["phase"])
    return "waits for the others" + (f": {waits}" if isinstance(waits, str) else "")
